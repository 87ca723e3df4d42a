"""Consumes a unit of a limit: python3 limit.py URL WAIT NAME [KEY…]. The token is in RLSIDECAR_API_TOKEN."""

import json
import os
import sys
import time
import urllib.error
import urllib.request
import uuid


def limit(url, name, key, count=1, wait=0.0):
    """Returns the decision. All repetitions have one request_id, so the sidecar charges them once."""
    return call(url, {"name": name, "key": key, "count": count, "request_id": str(uuid.uuid4())}, wait)


def reserve(url, name, key, estimate, wait=0.0):
    """Reserves units for work whose cost is known afterwards. The decision has the reservation for settle."""
    return call(url, {"name": name, "key": key, "count": estimate, "reserve": True, "request_id": str(uuid.uuid4())}, wait)


def settle(url, reservation, real, wait=60.0):
    """Corrects a reservation to the real cost. Repetitions settle it once."""
    return call(url, {"reservation": reservation, "count": real}, wait)


def call(url, request, wait, path="/v1/limit", sleep=time.sleep):
    """Returns the answer. Repeats the request after a lost answer or after its Retry-After, for up to wait seconds."""
    body = json.dumps(request).encode()
    headers = {"Content-Type": "application/json", "Authorization": "Bearer " + os.environ.get("RLSIDECAR_API_TOKEN", "")}
    deadline = time.monotonic() + wait
    while True:
        try:
            with urllib.request.urlopen(urllib.request.Request(url + path, body, headers), timeout=2) as answer:
                return json.load(answer)
        except urllib.error.HTTPError as error:
            retry = float(error.headers.get("Retry-After", "inf"))  # 429, 503, and 409 while another repetition runs
            if time.monotonic() + retry > deadline:
                if error.code == 429:
                    return json.load(error)
                raise
        except OSError:  # no answer
            retry = 0.2
            if time.monotonic() + retry > deadline:
                raise
        sleep(retry)


if __name__ == "__main__":
    decision = limit(sys.argv[1], sys.argv[3], sys.argv[4:], wait=float(sys.argv[2]))
    if decision["ok"]:
        print("allowed,", decision["limits"][0]["remaining"], "left")
    else:
        print("denied, retry after", decision["retry_after_ms"], "ms")
