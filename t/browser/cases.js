// The page's own scripts of cases.html, and two libraries as the guard sees them:
// the events that they raise, with what is in them, in their order.

'use strict';

// form.submit() in a handler
function handler(prevents) {
    document.forms.handled.onsubmit = function () {
        this.submit();
        return !prevents;
    };
}

function raise(target, type, detail) {
    return target.dispatchEvent(new CustomEvent(type, { detail, bubbles: true,
                                                        cancelable: true }));
}

for (const type of ['htmx:afterRequest', 'htmx:after:request', 'turbo:submit-end']) {
    document.addEventListener(type, function (event) {
        const data = document.documentElement.dataset;

        // not of one that was called off
        if (event.type !== 'turbo:submit-end' || event.detail.fetchResponse) {
            data.answers = Number(data.answers || 0) + 1;
        }
    });
}

// htmx: a request waits for the one before it
function likeHtmx(form) {
    let before = Promise.resolve();

    form.addEventListener('submit', function (event) {
        event.preventDefault();
        before = before.then(() => send(event));
    });

    async function send(triggeringEvent) {
        const formData = new FormData(form);
        const detail = { verb: 'post', path: '/', headers: { 'HX-Request': 'true' },
                         elt: form, formData, triggeringEvent };

        raise(form, 'htmx:configRequest', detail);

        const xhr = await fetch(detail.path, { method: 'POST', headers: detail.headers,
                                               body: new URLSearchParams(formData) });

        raise(form, 'htmx:afterRequest', { xhr: { status: xhr.status }, requestConfig: detail });
    }
}

// Turbo: a request takes the place of the one before it
function likeTurbo(form) {
    let before;

    addEventListener('submit', async function (event) {
        if (event.target !== form) {
            return;
        }

        event.preventDefault();
        before?.abort();
        before = new AbortController();

        const fetchOptions = { method: 'POST', headers: { Accept: 'text/html' },
                               body: new URLSearchParams(new FormData(form)),
                               signal: before.signal };

        raise(form, 'turbo:before-fetch-request',
              { fetchOptions, url: new URL(form.action) });

        try {
            const response = await fetch('/', fetchOptions);

            raise(form, 'turbo:submit-end', { success: response.ok,
                                              fetchResponse: { response } });
        } catch (error) {
            raise(form, 'turbo:submit-end', { success: false });
        }
    });
}

const library = location.search.replace(/.*&/, '');

if (library === 'htmx') {
    likeHtmx(document.forms.hx);

} else if (library === 'turbo') {
    likeTurbo(document.forms.turbo);

} else if (library) {
    document.write(`<script src="${library}"></script>`);
}
