// Workers of node's cluster that share the socket, without the scheduling of the first process.
const cluster = require('cluster');
const http = require('http');

cluster.schedulingPolicy = cluster.SCHED_NONE;
if (cluster.isMaster) {
    for (let started = 0; started < Number(process.argv[3]); started++) cluster.fork();
    process.on('SIGTERM', () => process.exit());
} else {
    const body = String(process.pid);
    const headers = { 'Content-Type': 'text/plain', 'Content-Length': body.length };
    http.createServer((_request, response) => {
        response.writeHead(200, headers);
        response.end(body);
    }).listen(Number(process.argv[2]), '127.0.0.1');
}
