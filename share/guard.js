// The browser guard: one click, one submit.
//
// What lives here: for each POST form of a page a submission_token in what is
// sent, no second submit while the first is under way, and a button that says
// so.  The server side holds without it.  What is served leaves out comment
// lines and indentation (util/embed), and is less than 5 KB.
//
//   - One token for each page view, form and content.  Sent again as it was
//     (a click after a failure, back from an error page) it is the same
//     submission; whatever was corrected since then makes another one, whether
//     the page comes out of a cache or is loaded again.  What
//     leaves the page where it is (another window, a download) may be meant
//     again later: there the token lasts for a minute.
//   - The token is the first field: nobody who reads only the beginning of an
//     upload misses it.
//   - Forms that htmx or Turbo sends have it as a header.  What is clicked
//     after the answer is another submission.
//   - Any other form that a script sends (preventDefault and fetch) is the
//     script's: no token, nothing held.
//   - Forms for other sites are left alone, and so is a submission_token that
//     the page brings along.

(() => {
    'use strict';

    const name = 'submission_token',
          header = 'Idempotency-Key',
          page = document,
          once = page.documentElement.dataset,
          given = page.currentScript?.dataset || {},
          label = given.submitting || 'Submitting\u2026',
          ignored = [name, ...(given.ignore || '').split(' ')],
          forms = HTMLFormElement.prototype,
          submit = forms.submit,
          states = new WeakMap(),
          stateOf = form => states.get(form) || states.set(form, {}).get(form),
          goes = event => !event?.eventPhase && !event?.defaultPrevented,
          ours = url => url.origin == location.origin,
          api = window.navigation;
    let last, aside;

    // ahead of the page's own handlers, so that they see one submit, too
    const on = (types, call, target = page) => types.split(' ').forEach(
                   type => target.addEventListener(type, call, true));

    // twice in a page is once too often
    if (once.submissionToken) {
        return;
    }

    once.submissionToken = 'added';

    on('submit', event => {
        if (event.isTrusted && !begin(event.target, event.submitter, event)) {
            event.preventDefault();
            event.stopImmediatePropagation();
        }
    });

    // this one raises no event
    forms.submit = function () {
        let go = true;

        try {
            go = begin(this);
        } catch {}

        if (go) {
            submit.call(this);
        }
    };

    on('formdata', onFormData);
    on('htmx:configRequest htmx:config:request turbo:before-fetch-request', onRequest);
    on('htmx:afterRequest htmx:after:request turbo:submit-end', onAnswer);

    // with these keys the answer goes to another tab or window, or to a file
    on('click keydown', event => {
        aside = event.ctrlKey || event.metaKey || event.shiftKey || event.altKey;

        if (event.key == 'Escape' && !api) {
            restore(last);
        }
    });

    // who goes on with the form doesn't wait any more
    on('input', event => {
        if (event.target.form == last?.form) {
            restore(last);
        }
    });

    // out of the back/forward cache
    on('pageshow', () => {
        if (last) {
            restore(last);
            last.state.end = Infinity;
        }
    }, window);

    // the user's stop button, or a newer submission; and a script that makes
    // the next page itself.  Nobody tells of a download or a 204
    if (api) {
        on('navigate', event => {
            if (event.formData) {
                on('abort', restore.bind(null, last), event.signal);
            }
        }, api);

        on('navigatesuccess', () => restore(last), api);
    }

    // false for the one that is under way
    function begin(form, button, event) {
        // not the form's properties, a field of that name would hide them
        const option = (key, none) => button?.getAttribute('form' + key)
                                      || form.getAttribute(key) || none,
              base = page.querySelector('base[target]'),
              url = new URL(option('action', page.URL), page.baseURI),
              at = performance.now(),
              state = stateOf(form),
              old = state.now,
              // a button that says "Submitting..." had another value
              value = (old?.button == button ? old : button)?.value,
              stays = aside || !/^_(self|parent|top)$/i.test(
                                   option('target', base?.target || '_self'));

        if (!/^post$/i.test(option('method')) || !ours(url)) {
            return true;
        }

        const print = digest([url, button?.name, value], new FormData(form)),
              sent = { form, button, value, event, state, url, at, stays, print, open: 1 };

        // after a while it may be a download again, and the server knows best;
        // a handler that calls form.submit() is a part of the first
        if (old?.print == print && at - old.at < 4e3 && goes(old.event)) {
            old.at = at;
            return false;
        }

        restore(old);
        state.now = sent;

        if (!stays) {
            last = sent;
        }

        // when all handlers had their say and the data is on its way
        setTimeout(() => {
            sent.open = 0;

            if (stays || event?.defaultPrevented) {
                restore(sent);

            } else if (state.now == sent) {
                show(sent);
            }
        });

        return true;
    }

    // what is sent; scripts that ask for a form's data get here as well, but
    // not between the end of a submit event and the request
    function onFormData(event) {
        const sent = stateOf(event.target).now,
              data = event.formData,
              fields = [...data];

        if (sent?.open && goes(sent.event) && !data.has(name)) {
            fields.unshift([name, token(sent, digest([sent.url], data))]);
            fields.forEach(field => data.delete(field[0]));
            fields.forEach(field => data.append(...field));
        }
    }

    // htmx has the request in detail, since version 4 in detail.ctx
    function onRequest(event) {
        const form = event.target,
              info = event.detail.ctx || event.detail,
              request = info.request || info.fetchOptions || info,
              data = request.formData || request.body
                     || new Map(Object.entries(request.parameters || {})),
              url = new URL(info.url || request.path || request.action, page.baseURI),
              cause = info.triggeringEvent || info.sourceEvent || event;

        if (form.tagName == 'FORM' && ours(url) && !request.headers[header]
            && !/^get$/i.test(request.verb || request.method)
            && !data.has(name))
        {
            request.headers[header] = `"${token({
                form, state: stateOf(form), at: cause.timeStamp, script: 1
            }, digest([url], data))}"`;
        }
    }

    // after an error of the server, or "still in progress", it is tried again
    function onAnswer(event) {
        const info = event.detail.ctx || event.detail,
              status = (info.xhr || info.response
                        || info.fetchResponse?.response)?.status;

        if (status && status < 500 && status != 409) {
            stateOf(event.target).end = event.timeStamp;
        }
    }

    function token({ form, state, stays, script, at }, print) {
        const key = name + [...page.forms].indexOf(form) + location.href,
              view = !stays && !script;
        let kept = state.kept;

        // back without the back/forward cache: the same view, loaded again
        if (!kept && view
            && performance.getEntriesByType('navigation')[0].type == 'back_forward')
        {
            kept = storage('getItem', key);
        }

        if (kept?.split(' ')[1] != print || at > state.end) {
            kept = uuid() + ' ' + print;
            state.end = stays ? at + 6e4 : Infinity;
        }

        // nothing that stems from a password
        if (view && !form.querySelector('[type=password]')) {
            storage('setItem', key, kept);
        }

        state.kept = kept;

        return kept.split(' ')[0];
    }

    // may be forbidden, or full
    function storage(method, key, value) {
        try {
            return sessionStorage[method](key, value);
        } catch {}
    }

    // of all that the server compares: a form that was corrected behind the back
    // button must not go under the token of what was refused
    function digest(parts, data) {
        let hash = 0;

        for (const [name, value] of data) {
            if (!ignored.includes(name)) {
                parts.push(name, value.name
                                 ? [value.name, value.size, value.lastModified]
                                 : value);
            }
        }

        for (const c of parts.join('\n')) {
            // exact, and more than there are characters: no two cancel out
            hash = (hash * 1114129 + c.codePointAt()) % 4e9;
        }

        return hash;
    }

    // randomUUID() is for HTTPS only
    function uuid() {
        return '10000000-1000-4000-8000-100000000000'.replace(/[018]/g, c =>
                   (c ^ (crypto.getRandomValues(new Uint8Array(1))[0] & 15) >> c / 4)
                       .toString(16));
    }

    // not "disabled": that would take the focus away, and a browser that loads
    // the page again on the way back may bring it back, for ever
    function show(sent) {
        const form = sent.form,
              button = sent.button || page.createElement('button'),
              input = button.tagName == 'INPUT',
              value = button.getAttribute('value'),
              nodes = [...button.childNodes],

              // still here: no answer, a download, or a very slow server
              timer = setTimeout(() => {
                  restore(sent);
                  sent.state.end = sent.at + 6e4;
              }, api ? 1e4 : 5e3);

        form.ariaBusy = button.ariaDisabled = true;

        if (input) {
            button.value = label;

        } else {
            button.replaceChildren(label);
        }

        sent.undo = () => {
            clearTimeout(timer);
            sent.undo = form.ariaBusy = button.ariaDisabled = null;

            if (!input) {
                button.replaceChildren(...nodes);

            } else if (value === null) {
                button.removeAttribute('value');

            } else {
                button.value = value;
            }
        };
    }

    function restore(sent) {
        if (sent) {
            sent.undo?.();

            if (sent.state.now == sent) {
                sent.state.now = null;
            }
        }
    }
})();
