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
    var root = document.documentElement;
    var script = document.currentScript;
    var label = script && script.getAttribute('data-submitting') || 'Submitting\u2026';
    var patience = 10000;
    var states = new WeakMap();
    var busy = [];
    var last;

    // twice in a page is once too often
    if (root.hasAttribute('data-' + name)) {
        return;
    }

    root.setAttribute('data-' + name, '');

    document.addEventListener('submit', onSubmit, true);
    document.addEventListener('formdata', onFormData, true);

    // out of the back/forward cache
    window.addEventListener('pageshow', function () {
        busy.splice(0).forEach(restore);
    });

    // the user's stop button
    if (window.navigation) {
        navigation.addEventListener('navigate', function (event) {
            if (event.formData && last) {
                event.signal.onabort = restore.bind(null, last);
            }
        });
    }

    // ahead of the page's own handlers, so that they see one submit, too
    function onSubmit(event) {
        var form = event.target;
        var button = event.submitter;
        var state = states.get(form);
        var url = event.isTrusted && ours(form, button);

        if (!url) {
            return;
        }

        if (!state) {
            states.set(form, state = {});
        }

        if (state.event && !state.event.defaultPrevented) {
            event.preventDefault();
            event.stopImmediatePropagation();
            return;
        }

        last = state;
        state.event = event;
        state.url = url;

        // when all handlers had their say and the data is on its way
        setTimeout(function () {
            state.url = '';

            if (!event.defaultPrevented) {
                show(form, button, state);
            }
        });
    }

    // what is sent; scripts that ask for a form's data get here as well, but
    // not between the end of a submit event and the request
    function onFormData(event) {
        var form = event.target;
        var data = event.formData;
        var state = states.get(form);
        var submit = state && state.event;

        if (submit && !submit.eventPhase && !submit.defaultPrevented
            && state.url && !data.has(name))
        {
            data.set(name, token(form, state, data));
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
        var key = [name, [].indexOf.call(document.forms, form),
                   location.pathname + location.search].join(' ');
        var kept = state.kept;

        // back without the back/forward cache: the same view, loaded again;
        // storage may be forbidden
        try {
            kept = kept || performance.getEntriesByType('navigation')[0].type === 'back_forward'
                           && sessionStorage.getItem(key);
        } catch (e) {}

        if (!kept || kept.split(' ')[1] !== print) {
            kept = uuid() + ' ' + print;
        }

        // nothing that stems from a password
        try {
            if (!form.querySelector('[type=password]')) {
                sessionStorage.setItem(key, kept);
            }
        } catch (e) {}

        state.kept = kept;

        return kept.split(' ')[0];
    }

    // of what the user may have changed
    function digest(form, text, data) {
        var hash = 0;
        var i;

        data.forEach(function (value, name) {
            var field = form.elements[name];

            if (!field || field.type !== 'hidden') {
                text += '\n' + name + '\n'
                        + (value.name === undefined ? value
                           : [value.name, value.size, value.lastModified]);
            }
        });

        for (i = 0; i < text.length; i++) {
            hash = hash * 31 + text.charCodeAt(i) | 0;
        }

        return '' + hash;
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
        var timer = setTimeout(restore, patience, state);
        var nodes = document.createDocumentFragment();
        var input = button && button.tagName === 'INPUT';
        var value = input && button.getAttribute('value');

        busy.push(state);
        set(form, 'aria-busy', 'true');

        if (input) {
            set(button, 'value', label);

        } else if (button) {
            while (button.firstChild) {
                nodes.appendChild(button.firstChild);
            }

            button.textContent = label;
        }

        if (button) {
            set(button, 'aria-disabled', 'true');
        }

        state.undo = function () {
            clearTimeout(timer);
            state.event = state.undo = null;
            set(form, 'aria-busy', null);

            if (input) {
                set(button, 'value', value);

            } else if (button) {
                button.textContent = '';
                button.appendChild(nodes);
            }

            if (button) {
                set(button, 'aria-disabled', null);
            }
        };
    }

    function restore(state) {
        if (state.undo) {
            state.undo();
        }
    }

    function set(element, name, value) {
        if (value === null) {
            element.removeAttribute(name);

        } else {
            element.setAttribute(name, value);
        }
    }
})();
