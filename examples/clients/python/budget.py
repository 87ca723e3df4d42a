"""Reserves units for work, and settles its real cost: python3 budget.py URL NAME KEY ESTIMATE REAL."""

import sys

from limit import reserve, settle


def work(real):
    """Stands for a call to a language model, and returns the number of tokens that the call used."""
    return real


if __name__ == "__main__":
    url, name, key, estimate, real = sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]), int(sys.argv[5])
    start = reserve(url, name, [key], estimate, wait=5.0)
    if not start["ok"]:
        sys.exit(f"denied, retry after {start['retry_after_ms']} ms")
    cost = estimate  # if the work fails, its cost is unknown
    try:
        cost = work(real)
    finally:
        if "reservation" in start:  # absent if on_backend_failure answered
            end = settle(url, start["reservation"], cost)
            print("settled,", end["limits"][0]["remaining"], "left")
