"""A tornado server of several processes on one socket."""
import asyncio
import os
import sys

import tornado.httpserver
import tornado.netutil
import tornado.process
import tornado.web


class Answer(tornado.web.RequestHandler):
    def get(self):
        self.write(str(os.getpid()))


async def serve(sockets):
    application = tornado.web.Application([("/", Answer)])
    tornado.httpserver.HTTPServer(application).add_sockets(sockets)
    await asyncio.Event().wait()


sockets = tornado.netutil.bind_sockets(int(sys.argv[1]), address="127.0.0.1")
tornado.process.fork_processes(int(sys.argv[2]))
asyncio.run(serve(sockets))
