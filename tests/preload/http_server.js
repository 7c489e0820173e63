// An HTTP server whose answers are made by threads: each request and each answer is a message from
// one thread's event loop to another's, which libuv tells of by an eventfd. Ends with SIGTERM.
'use strict';
const http = require('http');
const { Worker, isMainThread, parentPort } = require('worker_threads');

const WORKERS = 2;

if (!isMainThread) {
  parentPort.on('message', ({ id, path }) => {
    parentPort.postMessage({ id, body: `answer to ${path}\n` });
  });
} else {
  const waiting = new Map();
  let last = 0;
  const workers = Array.from({ length: WORKERS }, () => {
    const worker = new Worker(__filename);
    worker.on('message', ({ id, body }) => {
      const response = waiting.get(id);
      waiting.delete(id);
      response.end(body);
    });
    worker.on('error', (error) => {
      console.error(error);
      process.exit(1);
    });
    return worker;
  });
  const server = http.createServer((request, response) => {
    const id = ++last;
    waiting.set(id, response);
    workers[id % WORKERS].postMessage({ id, path: request.url });
  });
  process.on('SIGTERM', async () => {
    server.close();
    server.closeAllConnections();
    // The last requests of the load may be on their way to the workers and back.
    for (let tries = 0; waiting.size > 0 && tries < 2000; tries++) {
      await new Promise((resolve) => setTimeout(resolve, 10));
    }
    await Promise.all(workers.map((worker) => worker.terminate()));
    if (waiting.size > 0) {
      console.error(`${waiting.size} requests without an answer`);
      process.exitCode = 1;
    }
  });
  server.listen(Number(process.argv[2]), '127.0.0.1');
}
