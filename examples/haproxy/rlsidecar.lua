-- Requests a decision from rlsidecar. Its result is in txn.rl: allowed, denied, or malformed if the
-- request cannot be passed on. txn.rl is not set if there was no answer in time.
core.register_action("rlsidecar", { "http-req" }, function(txn)
  local headers = {
    ["host"]               = { "rlsidecar" },
    ["x-forwarded-method"] = { txn.sf:method() },
    ["x-forwarded-uri"]    = { txn.sf:url() },      -- as the client sent it: rlsidecar normalizes it
    ["x-forwarded-host"]   = { txn.sf:req_hdr("host") },
    ["x-forwarded-for"]    = { txn.sf:src() },
  }
  -- The headers that rlsidecar.yaml uses as keys. If the request lacks one, it is not sent.
  for _, name in ipairs({ "x-api-key" }) do
    if txn.f:req_fhdr_cnt(name) > 0 then headers[name] = { txn.sf:req_fhdr(name) } end
  end
  local ok, answer = pcall(function()
    return core.httpclient():get{ url = "http://rlsidecar/v1/auth", dst = "abns@rlsidecar-auth", headers = headers }
  end)
  -- A control byte in a key, which HAProxy accepts over HTTP/2, makes the request malformed. It must not count as a
  -- failure of rlsidecar: if HAProxy fails open, it would then allow such a request.
  local outcome = "malformed"
  if ok then
    local status = answer and answer.status or 0
    outcome = ({ [200] = "allowed", [429] = "denied" })[status] or (status >= 400 and status < 500 and "malformed")
  end
  if not outcome then return end
  txn:set_var("txn.rl", outcome)
  local function set(var, name)
    local values = answer.headers and answer.headers[name]
    if values and values[0] then txn:set_var(var, values[0]) end
  end
  set("txn.rl_retry", "retry-after")
  set("txn.rl_policy", "ratelimit-policy")
  set("txn.rl_limit", "ratelimit")
end)
