"""Which card this is, for this site alone: hashes keyed with the site's secret, never a UUID. No torch here."""

import contextlib
import hashlib
import hmac
import os
import secrets
import tempfile
from pathlib import Path

from harness.errors import HarnessError

SITE_KEY_VARIABLE = "OFPEAK_SITE_KEY"
LABEL_VARIABLE = "OFPEAK_LABEL"
_HASH_DIGITS = 12


def site_key() -> bytes:
    """The site's secret: the variable OFPEAK_SITE_KEY, or a file made on first use under the user's configuration."""
    given = os.environ.get(SITE_KEY_VARIABLE)
    if given:
        return given.encode()
    try:
        base = Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config")
        path = base / "ofpeak" / "site.key"
        if not path.exists():
            _make_site_key(path)
        key = path.read_text().strip()
    except (OSError, RuntimeError) as error:  # RuntimeError: this user has no home
        raise HarnessError(f"cannot keep the site's key ({error}). Set {SITE_KEY_VARIABLE}.") from error
    if not key:
        raise HarnessError(f"the site's key '{path}' is empty. Delete the file, or set {SITE_KEY_VARIABLE}.")
    return key.encode()


def _make_site_key(path: Path) -> None:
    """A new key in one step: nobody else can ever read it, and of two processes the second keeps the first one's."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile("w", dir=path.parent, prefix=".site.key.") as file:  # made with 0600
        file.write(secrets.token_hex(16))
        file.flush()
        with contextlib.suppress(FileExistsError):
            os.link(file.name, path)


def site_key_hash(key: bytes) -> str:
    """Which key made the hashes of a file, without telling the key."""
    return hashlib.sha256(b"ofpeak site key " + key).hexdigest()[:_HASH_DIGITS]


def card_hash(key: bytes, uuid: str) -> str:
    """A card's name at this site. A plain hash of a UUID could be reversed from an inventory; this one cannot."""
    return hmac.new(key, uuid.encode(), hashlib.sha256).hexdigest()[:_HASH_DIGITS]
