"""The local stack and the demo: servers for newcomers and tests, which semel itself does not need.

This is a package of its own, with its own wheel. It adds `semel up`, `down`, `status` and `demo` to
the command line. The library does not import it.
"""
