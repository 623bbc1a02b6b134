// What Node reads of bodies, a line of JSON for each line of JSON: {kind, type,
// body (base64)} becomes {reader: digest}.  Order counts but for the names at the
// top.  Beside what Node has, the packages of Express are asked if they can be
// found in the directory that is the argument.

'use strict';

const crypto = require('crypto');
const querystring = require('querystring');
const path = require('path');

function installed(name) {
    try {
        return require(path.join(process.argv[2] || '/nonexistent', 'node_modules', name));
    } catch (e) {
        return null;
    }
}

const qs = installed('qs');
const busboy = installed('busboy');
const append = installed('append-field');

// arrays and nested objects in their order, the top by name

function text(value, top) {
    if (Array.isArray(value))
        return '[' + value.map((v) => text(v)).join(',') + ']';

    if (value && typeof value === 'object') {
        const names = Object.keys(value);

        if (top) names.sort();
        return '{' + names.map((n) => JSON.stringify(n) + ':' + text(value[n])).join(',') + '}';
    }

    return JSON.stringify(value === undefined ? null : value);
}

// of JSON the order of members never counts

function sorted(value) {
    if (Array.isArray(value)) return '[' + value.map(sorted).join(',') + ']';

    if (value && typeof value === 'object')
        return '{' + Object.keys(value).sort()
                     .map((n) => JSON.stringify(n) + ':' + sorted(value[n])).join(',') + '}';

    return JSON.stringify(value);
}

// a name's values; what has neither name nor value is dropped

function lists(pairs) {
    const of = new Map();

    for (const [name, value] of pairs) {
        if (name === '' && value === '') continue;
        if (!of.has(name)) of.set(name, []);
        of.get(name).push(value);
    }

    return JSON.stringify([...of].sort((a, b) => (a[0] < b[0] ? -1 : a[0] > b[0] ? 1 : 0)));
}

async function formData(type, body) {
    const data = await new Response(body, { headers: { 'Content-Type': type } }).formData();
    const pairs = [];

    for (const [name, value] of data)
        pairs.push([name, typeof value === 'string' ? value
                          : { name: value.name, type: value.type,
                              bytes: Buffer.from(await value.arrayBuffer()).toString('base64') }]);

    return lists(pairs);
}

// as multer does it: fields into one object, files apart

function multer(type, body) {
    return new Promise((resolve) => {
        const fields = Object.create(null);
        const files = [];
        let b;

        try {
            b = busboy({ headers: { 'content-type': type }, preservePath: true });
        } catch (e) {
            return resolve('none');
        }

        b.on('field', (name, value) => { if (name !== undefined) append(fields, name, value); });
        b.on('file', (name, stream, info) => {
            const file = [name, info, ''];

            files.push(file);
            stream.setEncoding('base64').on('data', (data) => { file[2] += data; });
        });
        b.on('error', () => resolve('none'));
        b.on('close', () => resolve(text(fields, true) + lists(files.map((f) => [f[0] || '', f]))));
        b.end(body);
    });
}

async function read({ kind, type, body }) {
    const bytes = Buffer.from(body, 'base64');
    const ways = {};

    if (kind === 'form') {
        ways.URLSearchParams = () => lists(new URLSearchParams(bytes.toString()));
        ways.querystring = () => {
            const all = querystring.parse(bytes.toString(), '&', '=', { maxKeys: 0 });

            if (all[''] !== undefined)
                all[''] = [].concat(all['']).filter((v) => v !== '');
            if (all[''] && !all[''].length) delete all[''];
            return text({ ...all }, true);
        };
        if (qs)
            ways.qs = () => text(qs.parse(bytes.toString(), { allowPrototypes: true,
                arrayLimit: 100, parameterLimit: 10000, depth: 32 }), true);

    } else if (kind === 'json') {
        ways.JSON = () => sorted(JSON.parse(bytes.toString()));

    } else {
        ways.formData = () => formData(type, bytes);
        if (busboy && append) ways.multer = () => multer(type, bytes);
    }

    const out = {};

    for (const [name, way] of Object.entries(ways)) {
        let said;

        try { said = await way(); } catch (e) { said = 'none'; }
        out[name] = crypto.createHash('sha256').update(said).digest('hex');
    }

    return out;
}

let before = Promise.resolve();

require('readline').createInterface({ input: process.stdin }).on('line', (line) => {
    before = before.then(async () => console.log(JSON.stringify(await read(JSON.parse(line)))));
});
