"""Asks a sidecar as a Python gRPC client does, and prints what it hears: client.py TARGET [CA_FILE]."""
import sys, time
import grpc

target, ca = sys.argv[1], sys.argv[2:]
options = [
    ("grpc.keepalive_time_ms", 1000), ("grpc.keepalive_permit_without_calls", 1), ("grpc.http2.max_pings_without_data", 0),
    ("grpc.default_authority", "sidecar"),
]
if ca:
    credentials = grpc.ssl_channel_credentials(open(ca[0], "rb").read())
    channel = grpc.secure_channel(target, credentials, options + [("grpc.ssl_target_name_override", "sidecar")])
else:
    channel = grpc.insecure_channel(target, options)

SERVICE = "/envoy.service.ratelimit.v3.RateLimitService/"
unary = {name: channel.unary_unary(name) for name in (SERVICE + "ShouldRateLimit", SERVICE + "Nonsense", "/grpc.health.v1.Health/Check")}
states = []
channel.subscribe(states.append)


def varint(n):
    return bytes([n]) if n < 128 else bytes([n & 127 | 128]) + varint(n >> 7)


def field(number, value):
    return bytes([number << 3 | 2]) + varint(len(value)) + value


def request(*entries, domain=b"clients"):
    """A RateLimitRequest with a descriptor for each entry."""
    return field(1, domain) + b"".join(field(2, field(1, field(1, k.encode()) + field(2, v.encode()))) for k, v in entries)


def call(name, message, **more):
    """The overall code of an answer, or the status."""
    try:
        answer = unary[name](message, timeout=more.pop("timeout", 30), **more)
    except grpc.RpcError as e:
        return f"{e.code().name}: {e.details()}"
    return {b"\x08\x01": "OK", b"\x08\x02": "OVER_LIMIT"}.get(answer[:2], answer)


def ask(*entries, **more):
    return call(SERVICE + "ShouldRateLimit", request(*entries), **more)


def say(what, *heard):
    print(what + ":", *heard, flush=True)


once = [ask(("once", "a")) for _ in range(2)]
say("once", *once)

futures = [unary[SERVICE + "ShouldRateLimit"].future(request(("thousand", "a")), timeout=30) for _ in range(1500)]
heard = [f.result()[:2] for f in futures]
say("1500 at once", heard.count(b"\x08\x01"), "OK,", heard.count(b"\x08\x02"), "OVER_LIMIT")

say("gzip", ask(("user", "a" * 5000), compression=grpc.Compression.Gzip))
say("deflate", ask(("user", "a" * 5000), compression=grpc.Compression.Deflate))
say("long metadata", ask(("user", "a"), metadata=[("x-long", "x" * 40_000), ("x-more-bin", b"\x00\xff" * 10_000)]))
answer = unary[SERVICE + "ShouldRateLimit"](request(*[("user", str(i)) for i in range(1000)]), timeout=30)
say("an answer of more than a frame", len(answer) > 16384)

say("held", ask(("held", "a")), ask(("held", "a")))
say("held longer than its deadline", ask(("held", "b")), ask(("held", "b"), timeout=0.8))

say("not a message", call(SERVICE + "ShouldRateLimit", b"\xff\xff\xff"))
say("no domain", call(SERVICE + "ShouldRateLimit", request(("user", "a"), domain=b"")))
say("empty", call(SERVICE + "ShouldRateLimit", b""))
say("no such method", call(SERVICE + "Nonsense", b""))

say("health", unary["/grpc.health.v1.Health/Check"](b"", timeout=30))
watch = channel.unary_stream("/grpc.health.v1.Health/Watch")(b"", timeout=30)
say("watched health", next(watch))
reflection = channel.stream_stream("/grpc.reflection.v1.ServerReflection/ServerReflectionInfo")(iter([field(7, b"")]), timeout=30)
say("reflection", SERVICE.strip("/").encode() in next(reflection))

time.sleep(2.5)  # pings
say("still", ask(("user", "a")))
watch.cancel()
say("connections", states.count(grpc.ChannelConnectivity.READY))
channel.close()
