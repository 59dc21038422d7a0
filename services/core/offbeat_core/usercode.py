"""A user's own Python file: read once, named by its digest, and its errors told by the user's own line."""

from __future__ import annotations

import hashlib
import traceback
import warnings
from dataclasses import dataclass
from pathlib import Path
from types import CodeType

from offbeat_core.errors import OffbeatError

LONGEST_MESSAGE = 300
"""Characters of an error's message that are shown: some of torch's fill a screen."""


@dataclass(frozen=True)
class SourceFile:
    """The source as it was read: what is compiled is what the digest is of."""

    path: Path
    source: bytes

    @property
    def digest(self) -> str:
        """SHA-256 of the file's bytes, in hex."""
        return hashlib.sha256(self.source).hexdigest()

    def compile(self, what: str, prefix: str = "") -> CodeType:
        """Raises OffbeatError with file and line if it is not valid Python.

        Args:
            what: "task" or "model", for the remedy.
            prefix: of the message: the setting that named the file.
        """
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", SyntaxWarning)
                return compile(self.source, str(self.path), "exec", dont_inherit=True)
        except SyntaxError as error:
            where = f"{self.path}:{error.lineno}" if error.lineno else str(self.path)
            code = f": {error.text.strip()}" if error.text and error.text.strip() else ""
            raise OffbeatError(f"{prefix}{where}: {error.msg}{code}", f"correct the {what}'s file") from None
        except ValueError as error:  # null bytes
            raise OffbeatError(
                f"{prefix}{self.path}: is not Python source: {error}", f"give a {what}'s file (.py)"
            ) from None


def line_of(error: BaseException, path: str | Path) -> str:
    """'file:line' of the innermost line of the file that led to the error, or ''."""
    frames = traceback.extract_tb(error.__traceback__)
    return next((f"{path}:{frame.lineno}" for frame in reversed(frames) if frame.filename == str(path)), "")
