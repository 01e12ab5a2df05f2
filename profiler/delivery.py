"""What becomes of a profile at the end of a command: shown, written, then posted, so that none is ever lost."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from profiler.errors import MeasurementError
from profiler.post import post
from profiler.table import report
from zbplan.profile import Profile

TOKEN = "ZBPLAN_TOKEN"  # noqa: S105 (the name of the variable)


def add_delivery(parser: argparse.ArgumentParser) -> None:
    """Add the options that ``deliver`` reads."""
    add = parser.add_argument
    add("--name", help="name of the profile (default: the model's)")
    add("--output", "-o", type=Path, default=Path("profile.json"), help="file to write (default: %(default)s)")
    add("--json", action="store_true", help="print the profile as JSON instead of a table")
    add("--post", metavar="URL", help=f"service to post the profile to, once it is written (token: ${TOKEN})")
    add("--post-timeout-s", type=float, default=10.0, help="for each attempt to post (default: %(default)s)")


def deliver(profile: Profile, options: argparse.Namespace) -> None:
    """Show a profile on stdout, write it, and post it where asked to.

    Raises
    ------
    MeasurementError
        When the file cannot be written; the profile is then on stdout.
    PostError
        When the service does not take it; the profile is then in the file.
    """
    if options.name is not None:
        profile = profile.model_copy(update={"name": options.name})
    print(profile.to_json() if options.json else report(profile))  # noqa: T201
    try:
        options.output.write_text(profile.to_json(), encoding="utf-8")
    except OSError as error:
        if not options.json:
            print(profile.to_json())  # noqa: T201 (so that it is not lost)
        raise MeasurementError(f"{options.output}: found {error.strerror}; needed a file to write") from error
    _say(f"wrote {options.output}")
    if options.post is not None:
        target = post(profile, options.post, token=os.environ.get(TOKEN), timeout_s=options.post_timeout_s)
        _say(f"posted to {target}")


def _say(text: str) -> None:
    print(text, file=sys.stderr)  # noqa: T201
