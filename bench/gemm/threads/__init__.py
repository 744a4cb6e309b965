"""Products with several threads: a process a library, of which one runs and the others are stopped.

The thread pools of several libraries in one process disturb each other: their threads spin for a
while after a call, and each pool binds or places its threads as it likes. So every library gets a
worker process of its own, with the number of threads in its environment, and while one of them is
timed all others are stopped (SIGSTOP). The rounds are interleaved as with one thread, and ratios
are those of one round. The clock is the wall clock of the worker.

``2 threads, busy core`` is the same for a few shapes while another process keeps one core busy. A
library that gives each thread an equal part of the work then waits for the slower half; one that
hands out chunks does not.

Every library waits and places its threads as it does when nobody tells it. So TVM's pool binds each
of its threads but the caller's to a core. On a quiet machine binding made no difference. With a
busy core and chunks that are handed out the bound pool was the faster one, as the system put two
unbound threads on one core at times; with the work split once it was the slower one.
"""
