"""An event loop that threads wake by an eventfd, and that starts programs meanwhile."""

import asyncio
import os
import sys
import threading

ROUNDS = 2000


async def main():
    loop = asyncio.get_running_loop()
    counter = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
    heard = asyncio.Queue()
    loop.add_reader(counter, lambda: heard.put_nowait(os.eventfd_read(counter)))
    turn = threading.Semaphore(1)

    def tell():
        for _ in range(ROUNDS):
            turn.acquire()
            os.eventfd_write(counter, 1)

    thread = threading.Thread(target=tell)
    thread.start()
    for _ in range(ROUNDS):
        assert await asyncio.wait_for(heard.get(), 30) == 1
        turn.release()
    thread.join()

    # Programs are started by fork: from here on the kernel has the loop's set.
    for at in range(5):
        program = await asyncio.create_subprocess_exec(
            sys.executable, "-c", f"print({at})", stdout=asyncio.subprocess.PIPE
        )
        out, _ = await asyncio.wait_for(program.communicate(), 30)
        assert int(out) == at and program.returncode == 0
    os.eventfd_write(counter, 7)
    assert await asyncio.wait_for(heard.get(), 30) == 7
    loop.remove_reader(counter)
    os.close(counter)


asyncio.run(main())
