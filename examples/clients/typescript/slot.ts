// Runs a command while it has a slot of a concurrency limit: node slot.js URL NAME KEY COMMAND…
import { spawn } from "node:child_process";
import { once } from "node:events";
import { setTimeout as sleep } from "node:timers/promises";
import { call, limit } from "./limit.js";

/** No slot is free, and nobody knows when one will be. Wait a random time before the next try. */
export class Denied extends Error {}

/**
 * Takes a slot, renews it while work runs, and returns it at the end of work. The signal lost is aborted if the slot can
 * no longer be renewed: others may have its units, so stop the work.
 */
export async function withSlot<T>(
  url: string, name: string, key: string[], work: (lost: AbortSignal) => Promise<T>, count = 1, wait = 0,
): Promise<T> {
  const decision = await limit(url, name, key, count, wait);
  if (!decision.ok) throw new Denied(name);
  const reservation = decision.reservation!;
  const ttl = decision.limits[0].ttl_ms; // absent if no slot was needed, such as for an unlimited key
  const lost = new AbortController();
  const done = new AbortController();
  if (ttl) void renew(url, reservation, ttl, lost, done.signal);
  try {
    return await work(lost.signal);
  } finally {
    done.abort();
    if (ttl) await call(url, { reservation }, 10).catch(() => {}); // without an answer, the slot expires after its ttl
  }
}

/** Renews the slot every third of its ttl until done. A failure is repeated only while the slot can exist. */
async function renew(url: string, reservation: string, ttl: number, lost: AbortController, done: AbortSignal): Promise<void> {
  try {
    for (;;) {
      await sleep(ttl / 3, undefined, { signal: done });
      await call(url, { reservation }, ttl / 2000, "/v1/renew", done);
    }
  } catch {
    if (!done.aborted) lost.abort();
  }
}

if (process.argv[1]?.endsWith("slot.js")) {
  const [url, name, key, command, ...args] = process.argv.slice(2);
  try {
    await withSlot(url, name, [key], async (lost) => {
      const [code] = await once(spawn(command, args, { stdio: "inherit", signal: lost }), "exit");
      if (code !== 0) throw new Error("failed");
    });
  } catch (error) {
    const { name, message } = error as Error;
    console.error(error instanceof Denied ? "denied" : name === "AbortError" ? "lost" : message);
    process.exitCode = 1;
  }
}
