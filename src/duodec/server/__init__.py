"""Serve models over the APIs that clients speak.

process     a socket, loading, signals, an end without loss
app         the routes
http/       limits of what a connection may send, who may ask, streams of events
api/        from a request's JSON to a request, and from its outputs to JSON
models/     loaded models, and the scheduler of each in a thread of its own
service     the parts put together
metrics, watchdog, logs
            what an operator sees
"""
