// Consumes a unit of a limit: node limit.js URL WAIT NAME [KEY…]. The token is in RLSIDECAR_API_TOKEN.
import { randomUUID } from "node:crypto";
import { setTimeout as sleep } from "node:timers/promises";

interface Decision {
  ok: boolean;
  retry_after_ms?: number;
  wait_ms?: number;
  reservation?: string;
  limits: { name: string; ok: boolean; remaining?: number; ttl_ms?: number }[];
}

/** Returns the decision. All repetitions have one request_id, so the sidecar charges them once. */
export function limit(url: string, name: string, key: string[], count = 1, wait = 0): Promise<Decision> {
  return call(url, { name, key, count, request_id: randomUUID() }, wait);
}

/** Reserves units for work whose cost is known afterwards. The decision has the reservation for settle. */
export function reserve(url: string, name: string, key: string[], estimate: number, wait = 0): Promise<Decision> {
  return call(url, { name, key, count: estimate, reserve: true, request_id: randomUUID() }, wait);
}

/** Corrects a reservation to the real cost. Repetitions settle it once. */
export function settle(url: string, reservation: string, real: number, wait = 60): Promise<Decision> {
  return call(url, { reservation, count: real }, wait);
}

/** Returns the answer. Repeats the request after a lost answer or after its Retry-After, for up to wait seconds. */
export async function call(url: string, body: object, wait: number, path = "/v1/limit", stop?: AbortSignal): Promise<Decision> {
  const request = {
    method: "POST",
    headers: { "Content-Type": "application/json", Authorization: `Bearer ${process.env.RLSIDECAR_API_TOKEN ?? ""}` },
    body: JSON.stringify(body),
  };
  const deadline = performance.now() + wait * 1000;
  for (;;) {
    const answer = await fetch(url + path, { ...request, signal: AbortSignal.timeout(2000) }).catch((e: Error) => e);
    if (answer instanceof Response && answer.ok) return (await answer.json()) as Decision;
    // In seconds. 429, 503, and 409 while another repetition runs, have a Retry-After. A lost answer has none.
    const retry = answer instanceof Response ? Number(answer.headers.get("Retry-After") ?? Infinity) : 0.2;
    if (performance.now() + retry * 1000 > deadline) {
      if (answer instanceof Error) throw answer;
      if (answer.status === 429) return (await answer.json()) as Decision;
      throw new Error(`${answer.status}: ${await answer.text()}`);
    }
    await sleep(retry * 1000, undefined, { signal: stop });
  }
}

if (process.argv[1]?.endsWith("limit.js")) {
  const [url, wait, name, ...key] = process.argv.slice(2);
  const decision = await limit(url, name, key, 1, Number(wait));
  console.log(decision.ok ? `allowed, ${decision.limits[0].remaining} left` : `denied, retry after ${decision.retry_after_ms} ms`);
}
