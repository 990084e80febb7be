"""The server: an OpenAI-compatible interface over one engine, for many clients.

    settings    what the operator chose
    errors      everything that goes wrong, in OpenAI's shape
    connections what a connection may send, and how long it may take
    jsons, schemas, asking, formats, tools
                from a request's JSON to `Ask`s
    intake, workers, bounds
                a request before it is with the scheduler: few at once, within limits
    jobs        an `Ask` on its way, and what it says
    pool        admits jobs to slots, first come, first served; a thread a slot
    answering   one answer in one slot
    seats, keeping, load, drafting
                what the slots share: one target, one drafter, what both cost
    shapes, stream
                from jobs to JSON and to server-sent events
    meters, watchdog
                what an operator watches
    service, app, guard, running
                the parts put together, the routes, who may ask, the process

HTTP is known to `app`, `connections`, `guard`, `stream` and `running` only; nothing below them
waits for a client.
"""
