"""`.helmignore`: what Helm leaves out when it loads a chart folder.

Rules as in helm/helm pkg/ignore/rules.go and pkg/chart/v2/loader/directory.go @ e9b85e4: line by line,
first decision wins; a pattern without `/` is tested against the base name; a folder that matches takes
its content with it; a line with `!` ignores everything that it does *not* match.
"""

from __future__ import annotations

from dataclasses import dataclass

from engineroom.reading.globs import PatternError, path_match

MAX_RULES = 2_000


@dataclass(frozen=True)
class _Rule:
    pattern: str
    negated: bool
    folder_only: bool
    whole_path: bool


@dataclass(frozen=True)
class IgnoreRules:
    """The rules of one file.

    Attributes:
        refused: the line because of which Helm does not load the chart, and why; None when it does.
    """

    rules: tuple[_Rule, ...] = ()
    refused: tuple[int, str] | None = None

    def ignores(self, path: str) -> bool:
        """Whether a file of the chart, by its path below the chart's folder, is left out."""
        parts = path.strip("/").split("/")
        folders = ["/".join(parts[:end]) for end in range(1, len(parts))]
        return any(self._matches(f, True) for f in folders) or self._matches("/".join(parts), False)

    def _matches(self, path: str, folder: bool) -> bool:
        for rule in self.rules:
            subject = path if rule.whole_path else path.rpartition("/")[2]
            hit = path_match(rule.pattern, subject)
            if rule.negated:
                if (rule.folder_only and not folder) or not hit:
                    return True
            elif hit and (folder or not rule.folder_only):
                return True
        return False


def parse(text: str) -> IgnoreRules:
    """The rules of a `.helmignore`, with the one that Helm adds itself."""
    rules: list[_Rule] = []
    for number, line in enumerate(text.removeprefix("\ufeff").splitlines()[:MAX_RULES], start=1):
        rule = line.strip()
        if not rule or rule.startswith("#"):
            continue
        if "**" in rule:
            return IgnoreRules(tuple(rules), (number, "`**` is not supported"))
        try:
            path_match(rule, "abc")
            rules.append(_rule(rule))
            path_match(rules[-1].pattern, "abc")
        except PatternError as error:
            return IgnoreRules(tuple(rules), (number, str(error)))
    rules.append(_rule("templates/.?*"))
    return IgnoreRules(tuple(rules))


def _rule(text: str) -> _Rule:
    negated = text.startswith("!")
    text = text[1:] if negated else text
    folder_only = text.endswith("/")
    text = text.removesuffix("/")
    rooted = text.startswith("/")
    return _Rule(text.removeprefix("/"), negated, folder_only, rooted or "/" in text)
