"""A judge's prompt from a Jinja template: what an instruct model is asked, when it is no GenRM.

The template is the operator's, the values are strangers' text: it runs in a sandbox, values are never templates,
and a name that does not exist is an error at start-up rather than an empty place in a prompt.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import jinja2
from jinja2.sandbox import ImmutableSandboxedEnvironment

from genrm_trio.judging.files import read_text
from genrm_trio.judging.text import Turn, scrub

ROLE_BLOCKS: Final = ("system", "user")


class JudgeTemplate:
    """A compiled template.

    It sees `conversation` (turns with `role` and `content`), `response_1`, `response_2`, `principle` (or none),
    `rubric_ids` (or none), `score_range` and `ranking_range` (two numbers each). When it has blocks named
    `system` or `user`, each becomes the message of that role; otherwise the whole is one user message.
    Raises ValueError, with the line, for a template that does not compile or names what does not exist.
    """

    def __init__(self, source: str, score_range: Sequence[float], ranking_range: Sequence[float]) -> None:
        # The text goes to a model, not to a browser: escaping would change the answers that are judged.
        environment = ImmutableSandboxedEnvironment(autoescape=False, undefined=jinja2.StrictUndefined)
        self._ranges = {"score_range": tuple(score_range), "ranking_range": tuple(ranking_range)}
        try:
            self._template = environment.from_string(source)
            for principle in (None, "principle"):
                for rubric_ids in (None, (1, 2)):
                    self.messages((Turn("user", "prompt"),), "one", "two", principle, rubric_ids)
        except (jinja2.TemplateError, TypeError, ValueError, ArithmeticError, LookupError) as error:
            line = getattr(error, "lineno", None)
            where = f" line {line}" if line else ""
            raise ValueError(f"judge template{where}: {type(error).__name__}: {error}") from None

    @classmethod
    def load(cls, path: Path, score_range: Sequence[float], ranking_range: Sequence[float]) -> "JudgeTemplate":
        """Read a template from a UTF-8 file. Raises ValueError that names it."""
        try:
            return cls(read_text(path), score_range, ranking_range)
        except OSError as error:
            raise ValueError(f"judge.template {path}: {error.strerror}") from None
        except UnicodeDecodeError as error:
            raise ValueError(f"judge.template {path}: {error}") from None

    def messages(
        self,
        conversation: Sequence[Turn],
        response_1: str,
        response_2: str,
        principle: str | None,
        rubric_ids: Sequence[int] | None,
    ) -> list[dict[str, str]]:
        """Render one comparison. May raise what the template's own operations raise."""
        values: Mapping[str, Any] = {
            **self._ranges,
            "conversation": [{"role": turn.role, "content": turn.content} for turn in conversation],
            "response_1": response_1,
            "response_2": response_2,
            "principle": principle,
            "rubric_ids": None if rubric_ids is None else list(rubric_ids),
        }
        roles = [role for role in ROLE_BLOCKS if role in self._template.blocks]
        if not roles:
            return [{"role": "user", "content": scrub(self._template.render(values))}]
        context = self._template.new_context(dict(values))
        return [
            {"role": role, "content": scrub("".join(self._template.blocks[role](context)).strip())} for role in roles
        ]
