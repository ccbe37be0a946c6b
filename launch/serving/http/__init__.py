"""The engine behind OpenAI's API.

* `bodies`: JSON from outside, checked field by field; `errors`: OpenAI's bodies of errors.
* `parameters`: sampling parameters of a body; `completions`, `chat`: the two kinds of answers.
* `streaming`: server-sent events, and clients that go; `metrics`: Prometheus, by vLLM's names.
* `app`: routes and limits; `server`: until SIGTERM, and the answers that are under way then.
"""
