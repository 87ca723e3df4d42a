-- Requests a decision from rlsidecar. Its result is in txn.rl: allowed or denied. txn.rl is not set if there was no
-- answer in time. txn.slot is the id of the slot.
core.register_action("rlsidecar", { "http-req" }, function(txn)
  local headers = {
    ["host"]               = { "rlsidecar" },
    ["x-forwarded-method"] = { txn.sf:method() },
    ["x-forwarded-uri"]    = { txn.sf:url() },
    ["x-forwarded-host"]   = { txn.sf:req_hdr("host") },
    ["x-forwarded-for"]    = { txn.sf:src() },
  }
  local ok, answer = pcall(function()
    return core.httpclient():get{ url = "http://rlsidecar/v1/auth", dst = "abns@rlsidecar-auth", headers = headers }
  end)
  local outcome = ok and answer and ({ [200] = "allowed", [429] = "denied" })[answer.status]
  if not outcome then return end
  txn:set_var("txn.rl", outcome)
  local slot = answer.headers and answer.headers["x-ratelimit-slot"]
  if slot and slot[0] then txn:set_var("txn.slot", slot[0]) end
end)
