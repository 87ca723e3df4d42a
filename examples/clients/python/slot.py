"""Runs a command while it has a slot of a concurrency limit: python3 slot.py URL NAME KEY COMMAND…"""

import contextlib
import subprocess
import sys
import threading
import time

from limit import call, limit


class Denied(Exception):
    """No slot is free, and nobody knows when one will be. Wait a random time before the next try."""


class Slot:
    """lost becomes True if the slot can no longer be renewed: others may have its units, so stop the work."""

    lost = False


@contextlib.contextmanager
def slot(url, name, key, count=1, wait=0.0):
    """Takes a slot, renews it while the block runs, and returns it at the end of the block."""
    decision = limit(url, name, key, count, wait)
    if not decision["ok"]:
        raise Denied(name)
    held, done = Slot(), threading.Event()
    ttl = decision["limits"][0].get("ttl_ms")  # absent if no slot was needed, such as for an unlimited key
    if ttl:
        threading.Thread(target=renew, args=(url, decision["reservation"], ttl / 1000, held, done), daemon=True).start()
    try:
        yield held
    finally:
        done.set()
        if ttl:
            with contextlib.suppress(OSError):  # without an answer, the slot expires after its ttl
                call(url, {"reservation": decision["reservation"]}, 10.0)


def renew(url, reservation, ttl, held, done):
    """Renews the slot every third of its ttl until done is set. A failure is repeated only while the slot can exist."""

    def sleep(seconds):
        if done.wait(seconds):
            raise InterruptedError

    try:
        while True:
            sleep(ttl / 3)
            call(url, {"reservation": reservation}, ttl / 2, "/v1/renew", sleep)
    except Exception:
        held.lost = not done.is_set()


if __name__ == "__main__":
    url, name, key, command = sys.argv[1], sys.argv[2], sys.argv[3], sys.argv[4:]
    try:
        with slot(url, name, [key]) as held, subprocess.Popen(command) as work:
            while work.poll() is None:
                if held.lost:
                    work.terminate()
                    sys.exit("lost")
                time.sleep(0.05)
            if work.returncode != 0:
                sys.exit("failed")
    except Denied:
        sys.exit("denied")
