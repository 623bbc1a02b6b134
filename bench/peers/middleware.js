// An application with a middleware from npm and a Redis behind it, beside the
// same one without: node middleware.js PORT UPSTREAM REDIS, where REDIS is 0 for
// the one without. What it serves it asks an upstream for, as nginx does.

const http = require('http');
const express = require('express');
const { Idempotency } = require('@node-idempotency/core');
const { RedisStorageAdapter } = require('@node-idempotency/storage-adapter-redis');

const [port, upstream, redis] = process.argv.slice(2).map(Number);

const agent = new http.Agent({ keepAlive: true, maxSockets: 64 });

function ask(body) {
    return new Promise((resolve, reject) => {
        const req = http.request({
            agent, host: '127.0.0.1', port: upstream, method: 'POST', path: '/',
            headers: { 'Content-Type': 'application/json', 'Content-Length': Buffer.byteLength(body) },
        }, res => {
            const parts = [];
            res.on('data', d => parts.push(d));
            res.on('end', () => resolve({ status: res.statusCode, body: Buffer.concat(parts).toString() }));
        });
        req.on('error', reject);
        req.end(body);
    });
}

async function main() {
    const app = express();
    let guard = null;

    app.use(express.json());

    if (redis) {
        const storage = new RedisStorageAdapter({ url: `redis://127.0.0.1:${redis}` });
        await storage.connect();
        guard = new Idempotency(storage, { enforceIdempotency: false });
    }

    app.post('/*splat', async (req, res) => {
        const asked = { headers: req.headers, path: req.path, body: req.body, method: req.method };

        try {
            const known = guard && await guard.onRequest(asked);

            if (known) {
                res.set('Idempotent-Replayed', 'true').status(known.additional.status)
                   .type('json').send(known.body);
                return;
            }

            const done = await ask(JSON.stringify(req.body));

            if (guard) {
                await guard.onResponse(asked, { body: done.body, additional: { status: done.status } });
            }

            res.status(done.status).type('json').send(done.body);
        } catch (e) {
            res.status(e.code === 'IDEMPOTENCY_FINGERPRINT_MISSMATCH' ? 422 : 409).send(String(e));
        }
    });

    app.listen(port, '127.0.0.1');
}

main();
