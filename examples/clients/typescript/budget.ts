// Reserves units for work, and settles its real cost: node budget.js URL NAME KEY ESTIMATE REAL.
import { reserve, settle } from "./limit.js";

/** Stands for a call to a language model, and returns the number of tokens that the call used. */
async function work(real: number): Promise<number> {
  return real;
}

const [url, name, key, estimate, real] = process.argv.slice(2);
const start = await reserve(url, name, [key], Number(estimate), 5);
if (!start.ok) {
  console.error(`denied, retry after ${start.retry_after_ms} ms`);
  process.exit(1);
}
let cost = Number(estimate); // if the work fails, its cost is unknown
try {
  cost = await work(Number(real));
} finally {
  if (start.reservation) { // absent if on_backend_failure answered
    const end = await settle(url, start.reservation, cost);
    console.log(`settled, ${end.limits[0].remaining} left`);
  }
}
