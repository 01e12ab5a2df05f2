"""Profiles: what was measured, kept by name and by digest, so that a problem can refer to it."""

from __future__ import annotations

import hashlib
import json
import re

from sqlalchemy import insert, select, update
from sqlalchemy.exc import IntegrityError

from api.database import Database
from api.documents import text_of
from api.resource import now
from api.tables import ProfileRow
from zbplan.errors import Finding, InvalidInputError
from zbplan.profile import Profile
from zbplan.record import Record

MOST_CHARACTERS = 2000
"""How long a name may be as JSON text: an index of PostgreSQL holds no more than about 2700 bytes."""

_DIGEST = re.compile(r"[0-9a-f]{64}")


class PostedProfile(Record):
    """What a posted profile can be referred to by: its name means the latest of that name, its digest only itself."""

    name: str
    digest: str


class Profiles:
    """Profiles in a database."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def add(self, profile: Profile) -> PostedProfile:
        """Keep a profile, which is then the latest of its name.

        Raises
        ------
        InvalidInputError
            If its name is too long.
        """
        _require_short(profile.name)
        document = text_of(profile)
        digest = hashlib.sha256(document).hexdigest()
        row = {"digest": digest, "name": _stored(profile.name), "posted_at": now(), "document": document}
        again = update(ProfileRow).where(ProfileRow.digest == digest).values(posted_at=row["posted_at"])
        try:
            with self._database.write() as connection:
                connection.execute(insert(ProfileRow).values(row))
        except IntegrityError:
            with self._database.write() as connection:
                connection.execute(again)
        return PostedProfile(name=profile.name, digest=digest)

    def named(self, name: str) -> bytes | None:
        """Return the text of the latest profile with a name."""
        latest = (
            select(ProfileRow.document).where(ProfileRow.name == _stored(name)).order_by(ProfileRow.posted_at.desc())
        )
        with self._database.read() as connection:
            return connection.execute(latest.limit(1)).scalar_one_or_none()

    def with_digest(self, digest: str) -> bytes | None:
        """Return the text of the profile with a digest."""
        with self._database.read() as connection:
            same = select(ProfileRow.document).where(ProfileRow.digest == digest)
            return connection.execute(same).scalar_one_or_none()

    def find(self, reference: str) -> bytes | None:
        """Return the text of the profile that a reference, a digest or a name, stands for."""
        return (self.with_digest(reference) if _DIGEST.fullmatch(reference) else None) or self.named(reference)


def _require_short(name: str) -> None:
    if (found := len(_stored(name))) > MOST_CHARACTERS:
        needed = f"at most {MOST_CHARACTERS}, counting escapes such as \\u2603 as they are written"
        raise InvalidInputError([Finding("$.name", f"{found} characters of JSON text", needed)])


def _stored(name: str) -> str:
    # As JSON text, because a name may hold what a database cannot.
    return json.dumps(name)
