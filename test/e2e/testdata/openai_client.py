"""Calls a model through a proxy with the openai package, and prints the answers and errors: openai_client.py URL."""
import sys
import time
import openai

HEADERS = ["x-ratelimit-limit-tokens", "x-ratelimit-remaining-tokens", "x-ratelimit-limit-requests"]


def call(user, **options):
    client = openai.OpenAI(api_key="x", base_url=sys.argv[1], default_headers={"x-user-id": user} if user else {}, **options)
    try:
        answer = client.chat.completions.with_raw_response.create(model="m", messages=[{"role": "user", "content": "hi"}])
    except openai.APIStatusError as error:
        return f"{type(error).__name__} {error.code} {error.type}: {error.body['message'].split(' Please')[0]}"
    text = answer.parse().choices[0].message.content
    return " ".join([text] + [f"{name}={','.join(answer.headers.get_list(name))}" for name in HEADERS])


start = time.monotonic()
for number in range(3):
    print("bob:", call("bob"))
print("bob, no retries:", call("bob", max_retries=0))
late = time.monotonic() - start > 12  # a unit has refilled, so that the next call may need no retry
print("bob, retries:", call("bob").split(" ")[0])
print("nobody:", call(None))
print("late" if late else "in time")
