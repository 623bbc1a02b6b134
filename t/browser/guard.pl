# t/browser.t, the guard: form by form, and what the server executes.

use strict;
use warnings;

our ($stage, $dir, $browser, $tab, $at, $called);

my $uuid = qr/^[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$/;


sub forms_sent {
    my $sent = send_form('#plain', sub { $browser->click('#plain button') });

    like($sent->{fields}{submission_token}, $uuid, 'a token, which is a UUID');
    is($sent->{fields}{a}, 1, 'next to the field');
    is($sent->{fields}{go}, 'now', "and the button's value");

    my %other = (
        'input'     => ['#input [type=submit]', a => 2, go => 'Go'],
        'image'     => ['#image [type=image]', a => 4],
        'multipart' => ['#multipart button', a => 6],
        'shadow'    => ['#shadow button', method => 'x', action => 'y', target => 'z',
                        submit => ''],
        'get'       => ['#get [formmethod]', a => 7],
        'post'      => ['#post button:not([formmethod])', a => 8],
        'outside'   => ['#elsewhere', a => 14],
    );

    for my $id (sort keys %other) {
        my ($button, %fields) = @{ $other{$id} };

        $sent = send_form("#$id", sub { $browser->click($button) });
        like(delete $sent->{fields}{submission_token}, $uuid, "$id: a token");
        delete @{ $sent->{fields} }{qw(go_x go_y)} if $id eq 'image';
        is_deeply($sent->{fields}, \%fields, "$id: all of its fields");
    }

    $sent = send_form('#bare', sub {
        $browser->js('document.querySelector("#bare input").focus()');
        $browser->press('Enter');
    });
    like($sent->{fields}{submission_token}, $uuid, 'Enter, without a button: a token');

    $sent = send_form('#plain', sub { $browser->js('document.forms.plain.requestSubmit()') });
    like($sent->{fields}{submission_token}, $uuid, 'requestSubmit(): a token');

    $sent = send_form('#plain', sub { $browser->js('document.forms.plain.submit()') });
    like($sent->{fields}{submission_token}, $uuid, 'form.submit(): a token');
    like($browser->text, qr/"fields":\{"submission_token":/, 'which comes first');

    $sent = send_form('#plain', sub {
        $browser->js(<<'END');
            var form = document.createElement('form');
            form.id = 'later';
            form.method = 'post';
            form.action = '/echo';
            form.innerHTML = '<button name=new>Go</button>';
            document.body.prepend(form);
END
        $browser->click('#later button');
    });
    like($sent->{fields}{submission_token}, $uuid, 'a form added later: a token');

    $sent = send_form('#plain', sub {
        $browser->js('void Object.defineProperty(window, "sessionStorage",
                      { get: function () { throw new Error("forbidden") } })');
        $browser->click('#plain button');
    });
    like($sent->{fields}{submission_token}, $uuid, 'without storage: a token');

    # one page view
    my $token = send_form('#plain', sub { $browser->click('#plain button') });
    my $again = send_again(sub { $browser->click('#plain button') });
    is_deeply($again, $token, 'back, and again: the same token');

    my $later = send_again(sub { $browser->click('#plain [value=later]') });
    isnt($later->{fields}{submission_token}, $token->{fields}{submission_token},
         'the other button: another token');

    my $edited = send_again(sub {
        $browser->js('document.forms.plain.elements.a.value = 2');
        $browser->click('#plain [value=later]');
    });
    isnt($edited->{fields}{submission_token}, $later->{fields}{submission_token},
         'something else in the field: another token');

    # as refused and as corrected: of one length, and equal to a weak sum

    my @corrected = map {
        my $value = $_;

        send_again(sub {
            $browser->js("document.forms.plain.elements.a.value = '$value'");
            $browser->click('#plain [value=later]');
        })->{fields}{submission_token};
    } 'Aa', 'BB', 'Aa', 'Aa';

    isnt($corrected[1], $corrected[0], 'back, and corrected: another token');
    isnt($corrected[2], $corrected[0], '... as it was before: another one, too');
    is($corrected[3], $corrected[2], '... and as it was last: the same token');

    my $new = send_form('#plain', sub { $browser->click('#plain button') });
    isnt($new->{fields}{submission_token}, $token->{fields}{submission_token},
         'a new page view: another token');
}


sub forms_left_alone {
    my $sent = send_form('#get', sub { $browser->click('#get button:not([formmethod])') });
    is_deeply($sent, { method => 'GET', fields => { a => 7 } }, 'a GET form');

    $sent = send_form('#post', sub { $browser->click('#post [formmethod]') });
    is_deeply($sent, { method => 'GET', fields => { a => 8 } }, 'a GET button');

    $sent = send_form('#own', sub { $browser->click('#own button') });
    is($sent->{fields}{submission_token}, 'mine', "the page's own token");

    $sent = send_form('#foreign', sub {
        $browser->js("document.forms.foreign.action
                      = 'http://127.0.0.1:$stage->{port}{unprotected}/echo'");
        $browser->click('#foreign button');
    });
    is_deeply($sent, { method => 'POST', fields => { a => 10 } }, "another site's form");

    open_forms();
    $browser->js(<<'END');
        window.seen = [];
        document.forms.script.addEventListener('submit', function (event) {
            event.preventDefault();
            seen.push(Array.from(new FormData(event.target).keys()).join());
        });
END
    for my $n (1 .. 3) {
        $browser->click('#script button');
        $browser->wait_for("seen.length === $n", "submit $n");
    }
    is($browser->js('seen.join(" ")'), 'a a a',
       'a form that a script sends: as often as it likes, without a token');
    untouched('#script', 'Go');

    $browser->js('document.querySelector("dialog").show()');
    $browser->click('#dialog button');
    $browser->wait_for('!document.querySelector("dialog").open', 'closed dialog');
    untouched('#dialog', 'Close');

    $browser->js('document.forms.plain.dispatchEvent(new Event("submit", { cancelable: true,
                                                                           bubbles: true })), 0');
    untouched('#plain', 'Go now');

    $browser->click('#blank button');
    untouched('#blank', 'Go');

    is($browser->js(<<'END'), '', 'no global names');
        var frame = document.body.appendChild(document.createElement('iframe'));
        Object.getOwnPropertyNames(window).filter(function (name) {
            return !/^(seen|frame|\d+)$/.test(name) && !(name in frame.contentWindow);
        }).join();
END
}


sub the_button {
    my $n = posts();

    open_forms();
    $browser->click('#nothing button');
    $browser->wait_for('document.forms.nothing.getAttribute("aria-busy") === "true"',
                       'busy form');

    is($browser->js('document.querySelector("#nothing button").innerText'),
       "Submitting\x{2026}", 'it says what goes on');
    is($browser->js('document.querySelector("#nothing button").getAttribute("aria-disabled")'),
       'true', 'and is disabled');
    is($browser->js('document.activeElement.innerText'), "Submitting\x{2026}",
       'and keeps the focus');

    # however long it takes us
    $browser->js('void (performance.now = function () { return 0 })');
    $browser->click('#nothing button', times => 2);
    $browser->js('document.querySelector("#nothing input").focus()');
    $browser->press('Enter');

    # a request that isn't sent can't be awaited, but one after it
    seconds_take(0.1);
    $browser->click('#unnamed [type=submit]');
    $browser->wait_for('document.forms.unnamed.getAttribute("aria-busy")', 'other busy form');
    is($browser->js('document.querySelector("#unnamed [type=submit]").value'),
       "Submitting\x{2026}", 'an input says so as well');
    $browser->click('#unnamed [type=submit]', times => 2);
    $browser->wait_for('!document.forms.nothing.getAttribute("aria-busy")',
                       'form free again, for the other one took its place');
    until_true(sub { posts() - $n >= 2 });
    is(posts() - $n, 2, 'clicks on a busy form send nothing');

    $browser->wait_for('!document.querySelector("[aria-busy], [aria-disabled]")',
                       'free form');
    cmp_ok($browser->js('waited'), '>', 8000, 'no answer: free again after some time');
    is($browser->js('document.querySelector("#nothing button").outerHTML'),
       '<button>Send</button>', 'the button is as it was');
    is($browser->js('document.querySelector("#unnamed [type=submit]").outerHTML'),
       '<input type="submit">', 'so is the input');

    $browser->click('#nothing button');
    $browser->wait_for('document.forms.nothing.getAttribute("aria-busy")', 'busy form');
    until_true(sub { posts() - $n >= 3 });
    is(posts() - $n, 3, 'and it sends again, as nothing but that did');

    # a page out of the back/forward cache
    ($at, $called) = ('guarded', 'the button');
    weather();
    open_form();
    screenshots('form');
    $browser->click('button');
    thanked();
    screenshots('thank-you');
    back();
    is($browser->js('document.querySelector("form").outerHTML.match(/<form.*>/)[0]
                     + document.querySelector("button").outerHTML'),
       '<form method="post"><button>Book now</button>', 'back: the form is as it was');

    weather('nothing');
    $called = 'the busy button';
    open_form();
    $browser->click('button');
    $browser->wait_for('document.forms[0].getAttribute("aria-busy")', 'busy form');
    screenshots('submitting');
}


sub the_file {
    my $url = "http://127.0.0.1:$stage->{port}{guarded}/idempotency-guard.js";
    my $http = HTTP::Tiny->new(timeout => 20);
    my $file = $http->get($url);

    is($file->{status}, 200, 'is there');
    is($file->{headers}{'content-type'}, 'text/javascript; charset=utf-8', 'as JavaScript');
    cmp_ok(length $file->{content}, '<', 5120, 'of less than 5 KB');
    like($file->{headers}{'cache-control'}, qr/max-age=\d+/, 'may be cached');

    my $etag = $file->{headers}{etag};

    like($etag, qr/^"[^"]+"$/, 'has an entity tag');
    is($http->get($url, { headers => { 'if-none-match' => $etag } })->{status}, 304,
       'by which it is asked for again');

    my $page = $http->get("http://127.0.0.1:$stage->{port}{guarded}/");

    is(() = $page->{content} =~ m{<script src="/idempotency-guard.js"></script></head>}g, 1,
       'is put into the page');
}


sub open_forms {
    $browser->go("http://127.0.0.1:$stage->{port}{forms}/forms.html");
    $browser->wait_for("document.readyState === 'complete' && document.forms.shadow", 'forms');
}


# what the server got
sub send_form {
    my ($form, $code) = @_;

    open_forms();
    $code->();
    return echo();
}


sub send_again {
    my ($code) = @_;

    back();
    $code->();
    return echo();
}


sub echo {
    return decode_json($browser->wait_for(
        "location.pathname === '/echo' && document.readyState === 'complete'
         && document.body.innerText", 'echo'));
}


sub untouched {
    my ($form, $text) = @_;

    # the guard's part would come now
    $browser->js('new Promise(function (done) { setTimeout(done, 100) })');
    is($browser->js("document.querySelector('$form button').innerText
                     + (document.querySelector('$form').getAttribute('aria-busy') || '')"),
       $text, "$form: its button is as it was");
}


# --- what the server executes ------------------------------------------------
#
# Where only the token tells: without it, or with another one, there are two rows.

sub executed {
    executed_once_or_twice();
    page_stays();
    other_windows();
    form_submit();
    without_the_navigation_api();

    for my $library (qw(htmx turbo), map { m{([^/]+)$} } glob "$dir/pages/real-*") {
        scripts($library);
    }
}


sub executed_once_or_twice {
    my $twice = sub {
        my ($press, $change) = @_;

        $press->();
        thanked();
        back();
        $change->() if $change;
        $press->();
        thanked();
    };

    a_case('a hidden field that a script sets', 2, sub {
        $twice->(sub { press_with('#remove', seats => 7) });
        back();
        press_with('#remove', seats => 8);
        thanked();
    });

    a_case('a hidden field that is new and does not count', 1, sub {
        $twice->(sub { press_with('#remove', csrf => time) });
    });

    a_case('the other button', 2, sub {
        $twice->(sub { $browser->click('#buttons button') },
                 sub { $browser->js('void document.querySelector("#buttons button").remove()') });
    });

    a_case('an upload', 1, sub {
        $twice->(sub { upload(1500000); $browser->click('#upload button') });
    });

    a_case('another upload', 2, sub {
        my $n = 1500000;

        $twice->(sub { upload($n++); $browser->click('#upload button') });
    });
}


# no answer that replaces it
sub page_stays {
    for my $weather (qw(silent download)) {
        a_case("$weather, then something else", 2, sub {
            weather($weather);
            patient();
            $browser->click('#plain button');
            row(1);

            $browser->js('void (document.querySelector("#plain [name=note]").value = "else")');
            $browser->click('#plain button');
            row(2);

            # the first one's end is not the second one's
            is(label('#plain button'), "Submitting\x{2026}", "$weather: the second is under way");
            $browser->js('void (performance.now = function () { return 0 })');
            $browser->click('#plain button');
            after_all('#other button');
        });

        a_case("$weather, then the same, some time later", 1, sub {
            my $n = begun();

            weather($weather);
            $browser->click('#plain button');
            row(1);
            advance(5);
            $browser->click('#plain button');
            until_true(sub { asked() == 2 });
            is(asked(), 2, "$weather: it is sent again");
            is(begun(), $n + 1, "$weather: but not executed");
        });

        a_case("$weather, then the same, minutes later", 2, sub {
            weather($weather);
            seconds_take(0.1);
            $browser->click('#plain button');
            row(1);
            $browser->wait_for('!document.querySelector("[aria-busy]")', 'free form');
            advance(100);
            $browser->click('#plain button');
            row(2);
        });
    }

    a_case('who goes on with the form does not wait', 2, sub {
        weather('silent');
        patient();
        $browser->click('#plain button');
        row(1);
        is(label('#plain button'), "Submitting\x{2026}", 'the form is busy');
        $browser->js('document.querySelector("#plain [name=note]").focus()');
        $browser->type('more');
        is(label('#plain button'), 'Send', 'until something is typed');
        $browser->click('#plain button');
        row(2);
    });
}


sub other_windows {
    a_case('Ctrl and a click, then something else', 2, sub {
        $browser->click('#plain button', ctrl => 1);
        other_thanked(1);
        is(label('#plain button'), 'Send', 'Ctrl and a click: the page stays as it was');
        $browser->click('#plain button', ctrl => 1);
        other_thanked(2);
        is(rows('cases', $called), 1, 'Ctrl and a click, twice: one row');
        $browser->close_others;

        $browser->js('void (document.querySelector("#plain [name=note]").value = "else")');
        $browser->click('#plain button');
        thanked();
    });

    a_case('a new window, twice', 1, sub {
        for my $n (1, 2) {
            $browser->click('#blank button');
            other_thanked($n);
            $browser->switch($tab);
        }
        is(label('#blank button'), 'Send', 'a new window: the page stays as it was');
        $browser->close_others;
    });

    a_case('a new window, and again minutes later', 2, sub {
        for my $n (1, 2) {
            $browser->click('#blank button');
            other_thanked($n);
            $browser->switch($tab);
            advance(100);
        }
        $browser->close_others;
    });
}


sub form_submit {
    my %way = (
        'form.submit()' => 'document.forms.plain.submit()',
        'form.submit(), of a form with such a field' =>
            'HTMLFormElement.prototype.submit.call(document.forms.shadow)',
        'form.submit() by a handler that prevents' => 'handler(true)',
        'form.submit() by a handler that does not prevent' => 'handler(false)',
        'form.submit(), twice at once' =>
            '[1, 2].forEach(() => document.forms.plain.submit())',
    );

    for my $name (sort keys %way) {
        a_case($name, 1, sub {
            for my $n (1, 2) {
                back() if $n == 2;
                $browser->js("void ($way{$name})");
                $browser->click('#handled button') if $way{$name} =~ /handler/;
                thanked();
            }
        });
    }

    a_case('form.submit() of a form that is not in the page', 0, sub {
        $browser->js('void document.createElement("form").submit()');
        $browser->js('void document.createElement("form").submit.call(document.forms.plain.cloneNode())');
        after_all('#other button');
    });
}


sub without_the_navigation_api {
    $browser->before('delete window.navigation;
                      Object.defineProperty(window, "navigation", { value: undefined });');

    # on its own clock: when it was sent and when it was free
    my $watch = <<'END';
        window.times = [];
        new MutationObserver(function () {
            times.push(performance.now());
        }).observe(document.forms.plain, { attributeFilter: ['aria-busy'] });
END

    a_case('stopped, without the Navigation API', 1, sub {
        $browser->js($watch . '0');
        seconds_take(0.1);

        my $button = $browser->where('#plain button');

        $stage->under_way("$dir/weather", sub { $browser->click($button) }, sub {
            $browser->stop;
            is($browser->js('typeof navigation'), 'undefined', 'there is none');
            $browser->wait_for('times.length === 2', 'free form');
            cmp_ok($browser->js('waited'), '<', 9000,
                   'it is free again in less than 9 seconds');
            $browser->click($button, wait => 1);
        });
        thanked();
    });

    a_case('Escape, without the Navigation API', 1, sub {
        $browser->js($watch . '0');

        my $button = $browser->where('#plain button');

        $stage->under_way("$dir/weather", sub { $browser->click($button) }, sub {
            $browser->stop;
            $browser->press('Escape');
            $browser->wait_for('times.length === 2', 'free form');
            cmp_ok($browser->js('times[1] - times[0]'), '<', 4900,
                   'Escape: it is free at once');
            $browser->click($button, wait => 1);
        });
        thanked();
    });

    $browser->before;
}


# a library that sends the form
sub scripts {
    my ($library) = @_;
    my $form = $library =~ /turbo/ ? '#turbo' : '#hx';

    my $answered = sub {
        my ($n) = @_;

        $browser->wait_for("document.documentElement.dataset.answers >= $n", "answer $n");
    };

    a_case("$library: two clicks", 1, sub {
        my $submit = sub { $browser->js("document.querySelector('$form').requestSubmit()") };

        $stage->under_way("$dir/weather", $submit, $submit);
        $answered->($form eq '#turbo' ? 1 : 2);
    }, $library);

    return if $library =~ /real-turbo/;

    a_case("$library: another click, after the answer", 2, sub {
        for my $n (1, 2) {
            $browser->click("$form button");
            $answered->($n);
        }
    }, $library);

    a_case("$library: another click, after an error", 1, sub {
        weather('error');
        for my $n (1, 2) {
            $browser->click("$form button");
            $answered->($n);
        }
    }, $library);

    a_case("$library: a hidden field that a script sets, after an error", 2, sub {
        weather('error');
        for my $n (1, 2) {
            $browser->js("void (document.querySelector('$form [name=seats]').value = $n)");
            $browser->click("$form button");
            $answered->($n);
        }
    }, $library);
}


# a_case(NAME, ROWS, CODE): what is told apart by the name
sub a_case {
    my ($name, $expected, $code, $library) = @_;

    ($at, $called) = ('cases', $name);
    weather();
    $library //= '';
    $browser->go("http://127.0.0.1:$stage->{port}{cases}/cases.html?" . ++our $cases . "&$library");
    $browser->wait_for("document.readyState === 'complete'
                        && location.port === '$stage->{port}{cases}'
                        && location.search.startsWith('?$cases&')", 'forms');
    $browser->wait_for('!!(window.htmx || window.Turbo)', $library) if $library =~ /real/;
    $browser->js("for (const field of document.querySelectorAll('[name=name]:not([value])')) {
                      field.value = '$name';
                  }");
    our $since = asked(1);

    my $ok = eval { $code->(); 1 };
    my $error = $@;

    is($ok ? rows('cases', $name) : "it failed: $error", $expected,
       "$name: " . ($expected == 1 ? 'one row' : "$expected rows"));
}


sub press_with {
    my ($form, $name, $value) = @_;

    $browser->js("void (document.querySelector('$form [name=$name]').value = '$value')");
    $browser->click("$form button");
}


sub upload {
    my ($size) = @_;

    $browser->js(<<"END");
        (function () {
            const files = new DataTransfer();
            files.items.add(new File([new Uint8Array($size)], 'a.bin', { lastModified: 1 }));
            document.querySelector('#upload [type=file]').files = files.files;
        })()
END
}


sub row {
    my ($n) = @_;

    until_true(sub { rows('cases', $called) >= $n });
    is(rows('cases', $called), $n, "$called: row $n");
}


# the requests of this case; asked(1): of all
sub asked {
    my ($all) = @_;
    my $n = () = Stage::slurp("$dir/legacy-form.access.log") =~ m{"POST / HTTP}g;

    return $all ? $n : $n - our $since;
}


# the page's clock goes on
sub advance {
    my ($seconds) = @_;

    $browser->js("(function () {
        const now = performance.now.bind(performance);
        performance.now = function () { return now() + 1000 * $seconds };
    })()");
}


# what ends after seconds does so after that part of them, and with 0 not at all, as
# the machine may need longer than that; "waited" is what it asked for
sub seconds_take {
    my ($part) = @_;

    $browser->js("(function () {
        const start = setTimeout;
        window.setTimeout = function (code, wait) {
            return wait > 999 ? $part && start(code, $part * (window.waited = wait))
                              : start(code, wait);
        };
    })()");
}


sub patient { seconds_take(0) }


sub label { return $browser->js("document.querySelector('$_[0]').innerText") }


# a request that isn't sent can't be awaited, but one after it
sub after_all {
    my ($button) = @_;
    my $n = rows('cases', 'other');

    weather();
    $browser->click($button);
    $browser->wait_for_page('Thank you, other');
    is(rows('cases', 'other'), $n + 1, 'another form');
}


sub other_thanked {
    my ($n) = @_;

    until_true(sub { $n == grep { $_->{title} eq 'Book a workshop'
                                  && $_->{url} =~ /\?booking=/ } $browser->others });
    is(scalar(grep { $_->{url} =~ /\?booking=/ } $browser->others), $n,
       "$called: window $n");
}


1;
