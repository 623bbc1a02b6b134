// Clients as people have them, each operation retried until it is answered, each
// attempt at the next of several nginx, over connections that break: stripe-node,
// which names its operations itself, and axios with axios-retry.
//
//     node clients.js COUNT SEED NAME PORT...
//
// Between a client and an nginx is a relay that, of every three attempts or so,
// breaks one: before the request, in the middle of it, when it is through, or in
// the middle of the response. Prints a line for each operation that was answered:
//
//     KIND NAME STATUS EXECUTION
//
// where the upstream tells the number of the execution in X-Exec. Every operation
// has a line, or this exits with 1.

const http = require('http');
const net = require('net');
const axios = require('axios');
const axiosRetry = require('axios-retry').default;
const Stripe = require('stripe');

const [count, seed] = process.argv.slice(2, 4).map(Number);
const name = process.argv[4];
const ports = process.argv.slice(5).map(Number);

let state = seed || 1;

// repeatable: which attempts break, and how
function random(n) {
    state = (Math.imul(state, 1103515245) + 12345) >>> 0;
    return (state >>> 8) % n;
}

const ways = ['before', 'within', 'behind', 'response'];

function relay(port) {
    return new Promise(resolve => {
        const server = net.createServer(client => {
            const way = random(3) ? '' : ways[random(ways.length)];
            const upstream = net.connect(port, '127.0.0.1');
            let sent = 0, got = 0;

            const end = () => { client.resetAndDestroy(); upstream.destroy(); };

            client.on('error', end);
            upstream.on('error', end);
            client.on('close', () => upstream.destroy());
            upstream.on('close', () => client.destroy());

            client.on('data', d => {
                if (way === 'before') {
                    return end();
                }

                if (way === 'within') {
                    upstream.write(d.subarray(0, d.length >> 1), end);
                    return;
                }

                sent += d.length;
                upstream.write(d, () => way === 'behind' && setTimeout(end, random(40)));
            });

            upstream.on('data', d => {
                got += d.length;

                if (way === 'response') {
                    client.write(d.subarray(0, d.length >> 1), end);
                    return;
                }

                client.write(d);
            });
        });

        server.listen(0, '127.0.0.1', () => resolve(server.address().port));
    });
}

// each attempt has a connection of its own, to the next one
function elsewhere(relays) {
    let next = 0;

    const agent = new http.Agent({ keepAlive: false });
    const connect = agent.createConnection;

    agent.createConnection = function (options, cb) {
        next = (next + 1) % relays.length;
        return connect.call(this, { ...options, host: '127.0.0.1', port: relays[next] }, cb);
    };

    return agent;
}

async function main() {
    const relays = await Promise.all(ports.map(relay));
    const httpAgent = elsewhere(relays);

    const stripe = new Stripe('sk_test_1', {
        host: '127.0.0.1', port: relays[0], protocol: 'http', telemetry: false,
        httpAgent, maxNetworkRetries: 12, timeout: 20000,
    });

    const web = axios.create({ baseURL: `http://127.0.0.1:${relays[0]}`, httpAgent, timeout: 20000 });

    axiosRetry(web, {
        retries: 12,
        retryDelay: () => 30,
        retryCondition: e => !e.response || [409, 425, 429, 503].includes(e.response.status),
    });

    const told = (kind, name, status, exec) => console.log(kind, name, status, exec);

    const charge = async i => {
        const done = await stripe.charges.create({ amount: 100 + i, currency: 'eur', description: `${name}-charge-${i}` });
        const { statusCode, headers } = done.lastResponse;

        told('stripe', `${name}-charge-${i}`, statusCode, headers['x-exec']);
    };

    const order = async i => {
        const done = await web.post('/orders', { name: `${name}-order-${i}`, amount: i },
                                    { headers: { 'Idempotency-Key': `${name}-${seed}-${i}` } });

        told('axios', `${name}-order-${i}`, done.status, done.headers['x-exec']);
    };

    const todo = [];

    for (let i = 0; i < count; i++) {
        todo.push(() => charge(i), () => order(i));
    }

    const worker = async () => {
        while (todo.length) {
            await todo.shift()();
        }
    };

    await Promise.all(Array.from({ length: 16 }, worker));
}

main().then(() => process.exit(0), e => { console.error(e); process.exit(1); });
