"""The drivers of `make spec`: they run TLC, read its graphs, and tie both to the code."""
