// Calls the APIs of a sidecar with types that openapi-typescript generated: node generated.js HTTP ADMIN.
import createClient from "openapi-fetch";
import type { components, paths } from "./rlsidecar.js";
import type { paths as operatorPaths } from "./operators.js";

const [http, admin] = process.argv.slice(2);
const client = createClient<paths>({ baseUrl: http, headers: { Authorization: "Bearer s3cret" } });

const say = (...values: unknown[]) => console.log(JSON.stringify(values));

type Body = paths["/v1/limit"]["post"]["requestBody"]["content"]["application/json"];

async function call(body: Body): Promise<components["schemas"]["Decision"] | undefined> {
  const { data, error, response } = await client.POST("/v1/limit", { body });
  const decision = data ?? (error && "limits" in error ? error : undefined);
  if (decision) {
    const lines = decision.limits.map((one) => [one.name, one.ok, one.remaining]);
    say(response.status, decision.ok, lines, response.headers.has("Retry-After"));
  } else if (error && "type" in error) {
    say(response.status, error.type, error.detail);
  }
  return decision;
}

await call({ name: "send_message_to", key: ["bob", "alice"], count: 2, request_id: "r1" });
await call({ name: "send_message_to", key: ["bob", "alice"], count: 2, request_id: "r1" });
await call({ name: "send_message_to", key: ["bob", "alice"] });
await call({ limits: [{ name: "send_message", key: "bob" }, { name: "send_message_to", key: ["bob", { base64: "/w==" }] }] });
await call({ name: "send_message", key: "bob", count: 1000 });
await call({ name: "nope" });
const reserved = await call({ name: "llm_tokens", key: "bob", count: 30000, reserve: true });
await call({ reservation: reserved!.reservation!, count: 1000 });
const dry = await client.POST("/v1/check", { body: { name: "send_message", key: "bob" } });
say("check", dry.data?.ok, dry.data?.limits[0].remaining);
const { data: state } = await client.GET("/v1/limits/{name}", { params: { path: { name: "send_message" }, query: { key: ["bob"] } } });
say("bucket", state?.name, state?.algorithm, state?.period_us, state?.remaining);
const reset = await client.POST("/v1/reset", { body: { name: "send_message", key: "bob" } });
say("reset", reset.data?.ok);
const { data: list } = await client.GET("/v1/limits");
say("limits", list?.limits.map((one) => one.name));
const stranger = await createClient<paths>({ baseUrl: http }).POST("/v1/limit", { body: { name: "nope" } });
say("unauthorized", stranger.error && "type" in stranger.error ? stranger.error.type : stranger.error);

const operator = createClient<operatorPaths>({ baseUrl: admin });
const { data: found } = await operator.GET("/api/buckets", { params: { query: { limit: "send_message", key: ["bob"] } } });
say("operators", found?.buckets.map((one) => one.remaining));
const refused = await operator.POST("/api/adjustments", {
  body: { limit: "send_message", author: "ann", reason: "test", key: ["bob"], factor: 2, for: "1h" },
});
const problem = refused.error;
say("adjust", refused.response.status, typeof problem === "object" && "type" in problem ? problem.type : problem);
const { data: adjustments } = await operator.GET("/api/adjustments");
say("adjustments", adjustments?.adjustments);
