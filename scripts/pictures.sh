#!/usr/bin/env bash
# Makes the pictures of README.md from a running sidecar and from a report of `rlsidecar simulate`, in Chromium:
# docs/pictures/console.png and docs/pictures/simulate.png. Needs chromium, redis-server, curl and python3. It takes two
# minutes, because the chart of the console needs some traffic.
set -euo pipefail
cd "$(dirname "$0")/.."
dir=$(mktemp -d)
pids=()
trap 'kill "${pids[@]}" 2>/dev/null || true; wait 2>/dev/null || true; rm -rf "$dir"' EXIT
go build -buildvcs=false -o "$dir/rlsidecar" ./cmd/rlsidecar

cat > "$dir/limits.yaml" <<'YAML'
domain: shop
limits:
  per_key: {algorithm: token_bucket, rate: 120, period: 1m, capacity: 40}
  per_user: {algorithm: token_bucket, rate: 60, period: 1m, capacity: 20}
  search: {algorithm: sliding_window, rate: 300, period: 1m}
descriptors:
  - key: tenant
    descriptors: [{key: api_key, limit: per_key}]
  - {key: user, limit: per_user}
  - {key: path, value: /search, limit: search, shadow_mode: true}
YAML

# Honest clients and, after half a minute, a tenant that floods with 40 keys.
cat > "$dir/traffic.py" <<'PYTHON'
import http.client, json, random, sys, time
random.seed(1)
conn = http.client.HTTPConnection("127.0.0.1", int(sys.argv[1]))
began = time.time()
def send(*entries):
    body = {"domain": "shop", "descriptors": [{"entries": [{"key": k, "value": v} for k, v in e]} for e in entries]}
    conn.request("POST", "/json", json.dumps(body)); conn.getresponse().read()
while time.time() - began < int(sys.argv[2]):
    for _ in range(12):
        tenant = random.choice(["acme", "globex", "initech", "umbrella"])
        send([("tenant", tenant), ("api_key", "%s-%d" % (tenant, random.randrange(20)))], [("user", "user%d" % random.randrange(150))], [("path", "/search")])
    if time.time() - began > 30:
        for _ in range(40):
            send([("tenant", "evil"), ("api_key", "k%d" % random.randrange(40))])
    time.sleep(0.15)
PYTHON

redis-server --port 26390 --save '' --appendonly no > "$dir/redis.log" & pids+=($!)
"$dir/rlsidecar" serve --config "$dir/limits.yaml" --redis-url redis://127.0.0.1:26390 --grpc-listen 127.0.0.1:26391 \
  --http-listen 127.0.0.1:26392 --admin-listen 127.0.0.1:26393 --drain-delay 0s > "$dir/log" 2>&1 & pids+=($!)
until "$dir/rlsidecar" healthcheck --http-listen 127.0.0.1:26392 2> "$dir/health"; do sleep 0.1; done
python3 "$dir/traffic.py" 26392 120 & pids+=($!)

# A day of 200 clients that search now and then, and of two that take every page for a while.
python3 - > "$dir/access.log" <<'PYTHON'
import random, time
random.seed(2)
lines = []
for client in range(1, 200):
    for _ in range(6):
        at = min(86000, max(0, random.gauss(54000, 14000)))
        for _ in range(random.randrange(2, 11)):
            lines.append((at, "192.0.2.%d" % client))
            at += random.randrange(1, 9)
lines += [(33000 + i * 1.1, "203.0.113.9") for i in range(2500)]
lines += [(61000 + i * 0.8, "198.51.100.7") for i in range(2000)]
for at, client in sorted(lines):
    print('%s - - [%s] "GET /search HTTP/1.1" 200 512 "-" "-"' % (client, time.strftime("%d/%b/%Y:%H:%M:%S +0000", time.gmtime(1767225600 + at))))
PYTHON
printf 'domain: shop\ndescriptors:\n  - key: remote_address\n    rate_limit: {name: per_address, algorithm: token_bucket, rate: 40, period: 1m, capacity: 20}\n' > "$dir/address.yaml"
(cd "$dir" && ./rlsidecar simulate --config address.yaml --log-format nginx --descriptor remote_address=%h --html report.html access.log > report.txt)

picture() { # NAME WIDTH HEIGHT URL
  chromium --headless --no-sandbox --disable-gpu --hide-scrollbars --user-data-dir="$dir/browser" --window-size="$2,$3" \
    --virtual-time-budget=5000 --screenshot="$dir/$1.png" "$4" > "$dir/chromium.log" 2>&1
  mv "$dir/$1.png" "docs/pictures/$1.png"
}
picture simulate 1000 1000 "file://$dir/report.html"
sleep 90
picture console 1280 900 http://127.0.0.1:26393/
