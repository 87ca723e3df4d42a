"""Calls the APIs of a sidecar with the clients that openapi-python-client generated: generated.py HTTP ADMIN."""

import json
import sys

import operators
import rlsidecar
from operators.api.adjustments import list_adjustments, set_adjustment
from operators.api.buckets import buckets
from operators.models import AdjustmentRequest
from rlsidecar.api.limits import check, limit, list_limits, reset, show_bucket
from rlsidecar.models import (BucketState, Bytes, Decision, LimitCharge, LimitRequest, LimitsRequest, Problem,
                              ResetRequest, SettleRequest)

http, admin = sys.argv[1:]
client = rlsidecar.AuthenticatedClient(base_url=http, token="s3cret")


def say(*values):
    print(json.dumps(values, separators=(",", ":")))


def call(body):
    answer = limit.sync_detailed(client=client, body=body)
    if isinstance(answer.parsed, Decision):
        lines = [[one.name, one.ok, one.remaining] for one in answer.parsed.limits]
        say(answer.status_code.value, answer.parsed.ok, lines, "Retry-After" in answer.headers)
    elif isinstance(answer.parsed, Problem):
        say(answer.status_code.value, answer.parsed.type_, answer.parsed.detail)
    return answer.parsed


call(LimitRequest(name="send_message_to", key=["bob", "alice"], count=2, request_id="r1"))
call(LimitRequest(name="send_message_to", key=["bob", "alice"], count=2, request_id="r1"))
call(LimitRequest(name="send_message_to", key=["bob", "alice"]))
call(LimitsRequest(limits=[LimitCharge(name="send_message", key="bob"),
                           LimitCharge(name="send_message_to", key=["bob", Bytes(base64="/w==")])]))
call(LimitRequest(name="send_message", key="bob", count=1000))
call(LimitRequest(name="nope"))
reserved = call(LimitRequest(name="llm_tokens", key="bob", count=30000, reserve=True))
call(SettleRequest(reservation=reserved.reservation, count=1000))
dry = check.sync(client=client, body=LimitRequest(name="send_message", key="bob"))
say("check", dry.ok, dry.limits[0].remaining)
state = show_bucket.sync(client=client, name="send_message", key=["bob"])
assert isinstance(state, BucketState), state
say("bucket", state.name, state.algorithm.value, state.period_us, state.remaining)
say("reset", reset.sync(client=client, body=ResetRequest(name="send_message", key="bob")).ok)
say("limits", [one.name for one in list_limits.sync(client=client).limits])
say("unauthorized", limit.sync(client=rlsidecar.Client(base_url=http), body=LimitRequest(name="nope")).type_)

operator = operators.Client(base_url=admin)
say("operators", [one.remaining for one in buckets.sync(client=operator, limit="send_message", key=["bob"]).buckets])
refused = set_adjustment.sync_detailed(client=operator, body=AdjustmentRequest(
    limit="send_message", author="ann", reason="test", key=["bob"], factor=2, for_="1h"))
say("adjust", refused.status_code.value, refused.parsed.type_)
say("adjustments", list_adjustments.sync(client=operator).adjustments)
