"""Serve one model over OpenAI's interface.

running     the process: a socket, loading, signals, an end without loss
connections, guard, intake, workers, bounds, jsons
            limits: what a client may send, and who may
app         the routes
schemas, asking, formats, tools
            from a request's JSON to prompts and sampling parameters
service     the parts put together
scheduling  the scheduler in a thread of its own
feed        its outputs, in the event loop
forms, shapes, logprobs, stream
            from outputs to JSON and to server-sent events
meters, watchdog, logs
            what an operator sees
"""
