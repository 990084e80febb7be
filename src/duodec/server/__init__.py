"""The server: an OpenAI-compatible interface over one engine, for many clients.

    settings    what the operator chose
    errors      everything that goes wrong, in OpenAI's shape
    fields, asking, messages, tools
                from a request's JSON to `Ask`s
    jobs        an `Ask` on its way, and what it says
    pool        admits jobs to slots, first come, first served; a thread a slot
    answering   one answer in one slot
    seats, keeping, load, drafting
                what the slots share: one target, one drafter, what both cost
    shapes, stream
                from jobs to JSON and to server-sent events
    service, app, guard, running
                the parts put together, the routes, who may ask, the process

HTTP is known to `app`, `guard`, `stream` and `running` only; nothing below them waits for a client.
"""
