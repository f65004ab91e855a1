"""A reward server for RL training: cohorts in, judged together, rewards out."""
