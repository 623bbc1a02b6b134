// The browser guard: one click, one submit.
//
// What lives here: for each POST form of a page a submission_token in what is
// sent, no second submit while the first is under way, and a button that says
// so.  The server side holds without it.  What is served leaves out comment
// lines and indentation (util/embed), and is less than 4 KB.
//
//   - One token for each page view, form and content.  Sent again as it was
//     (a click after a failure, back from an error page) it is the same
//     submission; what the user changed since then makes another one.
//   - A form that a script sends (preventDefault and fetch) is the script's:
//     no token, nothing held.  form.submit() raises no submit event: no token
//     either, and the server goes by the content.
//   - Forms for other sites or windows are left alone, and so is a
//     submission_token that the page brings along.

(function () {
    'use strict';

    var name = 'submission_token';
    var once = document.documentElement.dataset;
    var script = document.currentScript;
    var label = script && script.getAttribute('data-submitting') || 'Submitting\u2026';
    var states = new WeakMap();
    var last;

    // twice in a page is once too often
    if (once.submissionToken) {
        return;
    }

    once.submissionToken = 'added';

    document.addEventListener('submit', onSubmit, true);
    document.addEventListener('formdata', onFormData, true);

    // out of the back/forward cache
    addEventListener('pageshow', function () {
        restore(last);
    });

    // the user's stop button
    if (window.navigation) {
        navigation.addEventListener('navigate', function (event) {
            if (event.formData) {
                event.signal.addEventListener('abort', restore.bind(null, last));
            }
        });
    }

    // ahead of the page's own handlers, so that they see one submit, too
    function onSubmit(event) {
        var form = event.target;
        var button = event.submitter;
        var state = states.get(form) || {};
        var url = event.isTrusted && ours(form, button);

        if (!url) {
            return;
        }

        if (state.event && !state.event.defaultPrevented) {
            event.preventDefault();
            event.stopImmediatePropagation();
            return;
        }

        last = state;
        states.set(form, state);
        state.event = event;
        state.url = url;

        // when all handlers had their say and the data is on its way
        setTimeout(function () {
            state.url = '';

            if (!event.defaultPrevented) {
                show(form, button || document.createElement('button'), state);
            }
        });
    }

    // what is sent; scripts that ask for a form's data get here as well, but
    // not between the end of a submit event and the request
    function onFormData(event) {
        var state = states.get(event.target);
        var data = event.formData;

        if (state && state.url && !state.event.eventPhase
            && !state.event.defaultPrevented && !data.has(name))
        {
            data.set(name, token(event.target, state, data));
        }
    }

    // the address, if the answer is to replace this page by one of this site
    function ours(form, button) {
        var base = document.querySelector('base[target]');
        var url = new URL(option('action', document.URL), document.baseURI);

        // not the form's properties, a field of that name would hide them
        function option(key, none) {
            return button && button.getAttribute('form' + key)
                   || form.getAttribute(key) || none;
        }

        return /^post$/i.test(option('method'))
               && /^_(self|parent|top)$/i.test(option('target', base ? base.target : '_self'))
               && url.origin === location.origin
               && url.href;
    }

    function token(form, state, data) {
        var print = digest(form, state.url, data);
        var key = name + [].indexOf.call(document.forms, form) + location.href;
        var kept = state.kept;

        // back without the back/forward cache: the same view, loaded again
        if (!kept && performance.getEntriesByType('navigation')[0].type === 'back_forward') {
            kept = storage('getItem', key);
        }

        if (!kept || kept.split(' ')[1] != print) {
            kept = uuid() + ' ' + print;
        }

        // nothing that stems from a password
        if (!form.querySelector('[type=password]')) {
            storage('setItem', key, kept);
        }

        state.kept = kept;

        return kept.split(' ')[0];
    }

    // may be forbidden, or full
    function storage(method, key, value) {
        try {
            return sessionStorage[method](key, value);
        } catch (e) {}
    }

    // of what the user may have changed
    function digest(form, text, data) {
        var hash = 0;
        var i;

        data.forEach(function (value, name) {
            var field = form.elements[name];

            if (!field || field.type !== 'hidden') {
                text += '\n' + name + '\n'
                        + (value.name ? [value.name, value.size, value.lastModified]
                                      : value);
            }
        });

        for (i = 0; i < text.length; i++) {
            hash = hash * 31 + text.charCodeAt(i) | 0;
        }

        return hash;
    }

    // randomUUID() is for HTTPS only
    function uuid() {
        var crypto = window.crypto || {};

        if (crypto.randomUUID) {
            return crypto.randomUUID();
        }

        return '10000000-1000-4000-8000-100000000000'.replace(/[018]/g, function (c) {
            var random = crypto.getRandomValues
                         ? crypto.getRandomValues(new Uint8Array(1))[0]
                         : Math.random() * 256;

            return (c ^ (random & 15) >> c / 4).toString(16);
        });
    }

    // not "disabled": that would take the focus away, and a browser that loads
    // the page again on the way back may bring it back, for ever
    function show(form, button, state) {
        var timer = setTimeout(restore, 10000, state);
        var range = document.createRange();
        var input = button.tagName === 'INPUT';
        var value = button.getAttribute('value');
        var nodes;

        form.setAttribute('aria-busy', 'true');
        button.setAttribute('aria-disabled', 'true');

        if (input) {
            button.setAttribute('value', label);

        } else {
            range.selectNodeContents(button);
            nodes = range.extractContents();
            button.textContent = label;
        }

        state.undo = function () {
            clearTimeout(timer);
            state.event = state.undo = null;
            form.removeAttribute('aria-busy');
            button.removeAttribute('aria-disabled');

            if (!input) {
                button.textContent = '';
                button.appendChild(nodes);

            } else if (value === null) {
                button.removeAttribute('value');

            } else {
                button.setAttribute('value', value);
            }
        };
    }

    function restore(state) {
        if (state && state.undo) {
            state.undo();
        }
    }
})();
