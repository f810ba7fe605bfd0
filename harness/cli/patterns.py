"""`--only`: patterns that name families or keys."""

from collections.abc import Sequence

from harness.errors import HarnessError


def read_patterns(texts: Sequence[str]) -> tuple[str, ...]:
    """The patterns of every `--only` that was given; `HarnessError` where that is none."""
    patterns = tuple(pattern for text in texts for pattern in split_patterns(text))
    if texts and not patterns:
        raise HarnessError("--only names no case. Leave it out to take all.")
    return patterns


def split_patterns(text: str) -> list[str]:
    """Patterns with spaces or commas between them; a comma inside a key stays in the key.

    `memory,gemm/*` are two, `gemm/dtype=bf16,impl=torch` is one: after a slash, `name=value` goes on with the key,
    and so does a lone `*`.
    """
    patterns: list[str] = []
    for word in text.split():
        pieces: list[str] = []
        for piece in filter(None, word.split(",")):
            is_continuation = bool(pieces) and "/" in pieces[-1] and "/" not in piece
            if is_continuation and ("=" in piece or not piece.strip("*?")):
                pieces[-1] += f",{piece}"
            else:
                pieces.append(piece)
        patterns += pieces
    return patterns
