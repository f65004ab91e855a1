"""The model configurations: read from mc/*.cfg, and varied for mutants, coverage and graphs."""

import re
from dataclasses import dataclass
from pathlib import Path

from spec.tools.tlc import SPEC

FAST = ("S", "L3", "L2", "G", "X", "E", "H", "D", "R", "P", "Q", "U", "A", "F", "T", "V", "W", "L", "C")
"""What `make spec` checks, the longest first."""
LIVE = ("L", "L2", "L3")
"""Those that check liveness, and nothing else."""
DEEP = ("Y", "P2")
"""What only `make spec-deep` checks."""
REDUCED = ("X", "D", "Q", "U", "F", "L", "C")
"""What the reduced run checks."""
REPLAYED = ("Q", "P", "R", "F", "U", "X", "D", "T", "C")
"""The graphs whose every edge is replayed on the code."""
REPLAYED_REDUCED = ("Q", "F", "U", "C")
REPLAYED_DEEP = (*REPLAYED, "V", "W", "E", "S")


@dataclass(frozen=True, slots=True)
class Config:
    """One configuration file."""

    name: str
    text: str

    def constant(self, name: str) -> str:
        """The text of a constant's value."""
        found = re.search(rf"^\s*{name}\s*=\s*(.*)$", self.text, re.MULTILINE)
        assert found is not None, f"configuration {self.name} has no constant {name}"
        return found[1].strip()

    def names(self, keyword: str) -> tuple[str, ...]:
        """The names listed after a keyword such as INVARIANTS, up to the line's end."""
        return tuple(n for line in re.findall(rf"^{keyword}\s+(.*)$", self.text, re.MULTILINE) for n in line.split())

    def without_checks(self) -> "Config":
        """The same model with nothing to check."""
        return Config(
            self.name, re.sub(r"^(INVARIANTS?|PROPERTIES|PROPERTY)\b.*\n?", "", self.text, flags=re.MULTILINE)
        )

    def with_edges(self) -> "Config":
        """The same model, printing every transition."""
        return Config(self.name, self.without_checks().text + "ACTION_CONSTRAINT Edges\n")

    def with_mutant(self, mutant: str, checks: str) -> "Config":
        """The model with one broken rule, and lines that say what is checked."""
        text = self.without_checks().text
        broken, count = re.subn(r"^(\s*Mutants\s*=\s*)\{\}", rf'\g<1>{{"{mutant}"}}', text, flags=re.MULTILINE)
        assert count == 1, f"configuration {self.name} sets no Mutants"
        return Config(self.name, f"{broken}{checks}\n")


def load(name: str) -> Config:
    """Read mc/<name>.cfg."""
    return Config(name, (SPEC / "mc" / f"{name}.cfg").read_text())


def all_names() -> tuple[str, ...]:
    """Every configuration in mc/."""
    return tuple(sorted(Path(p).stem for p in (SPEC / "mc").glob("*.cfg")))
