# SPEC, "What a request gets" 1 and idempotency_dry_run: what is left untouched.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::Bin/lib";
use Idempotency;


my $n = nginx(files => {
                  'html/page.html' =>
                      "<!--# include virtual=\"/part?id=part\" -->"
                      . "<!--# include virtual=\"/part?id=part\" -->",
                  'html/off.html' =>
                      "<!--# include virtual=\"/part?id=free\" -->",
              },
              server => <<'EOC');
    idempotency zone=z;
    idempotency_in_progress reject;

    add_header X-Status $idempotency_status always;

    location / { proxy_pass http://$TEST_NGINX_BACKEND; }

    location /bypass {
        idempotency_bypass $arg_bypass $http_x_bypass;
        idempotency_missing_key reject;
        proxy_pass http://$TEST_NGINX_BACKEND;
    }

    location /always {
        idempotency_bypass 1;
        proxy_pass http://$TEST_NGINX_BACKEND;
    }

    location /never {
        idempotency_bypass 0 "" $arg_nothing;
        proxy_pass http://$TEST_NGINX_BACKEND;
    }

    location /off {
        idempotency off;
        proxy_pass http://$TEST_NGINX_BACKEND;

        location /off/on {
            idempotency zone=z;
            proxy_pass http://$TEST_NGINX_BACKEND;
        }
    }

    location /get {
        idempotency_methods GET POST;
        proxy_pass http://$TEST_NGINX_BACKEND;
    }

    # subrequests: each of them would be protected if it were a request
    location /page.html {
        idempotency_methods GET POST;
        root $TEST_NGINX_ROOT/html;
        ssi on;
        ssi_types text/plain;
    }

    location /off.html {
        idempotency off;
        root $TEST_NGINX_ROOT/html;
        ssi on;
        ssi_types text/plain;
    }

    location /part {
        idempotency_methods GET POST;
        proxy_pass http://$TEST_NGINX_BACKEND;
    }

    location /mirrored {
        mirror /copy;
        proxy_pass http://$TEST_NGINX_BACKEND;
    }

    location /off/mirrored {
        idempotency off;
        mirror /copy;
        proxy_pass http://$TEST_NGINX_BACKEND;
    }

    location /copy {
        internal;
        proxy_pass http://$TEST_NGINX_BACKEND/copy?id=copy$arg_id;
    }

    location /authorised {
        idempotency_methods GET POST;
        auth_request /auth;
        proxy_pass http://$TEST_NGINX_BACKEND;
    }

    location = /auth {
        internal;
        idempotency_methods GET POST;
        proxy_pass_request_body off;
        proxy_set_header Content-Length "";
        proxy_pass http://$TEST_NGINX_BACKEND/auth?id=auth;
    }

    location /upgrade {
        proxy_http_version 1.1;
        proxy_set_header Upgrade $http_upgrade;
        proxy_set_header Connection upgrade;
        proxy_pass http://$TEST_NGINX_BACKEND;
    }

    location /dry {
        idempotency_dry_run on;
        idempotency_bypass $arg_bypass;
        idempotency_missing_key reject;
        proxy_pass http://$TEST_NGINX_BACKEND;

        location /dry/small {
            idempotency_max_response 4;
            proxy_pass http://$TEST_NGINX_BACKEND;
        }

        location /dry/2xx {
            idempotency_keep 2xx;
            proxy_pass http://$TEST_NGINX_BACKEND;
        }
    }
EOC

my $id = 'case0';

sub told {
    my ($r) = @_;

    return $r ? "$r->{status} " . ($r->header('X-Status') // '-') : 'nothing';
}

# The same request, so many times; what it was told and how often it executed.

sub times_of {
    my ($count, $method, $uri, %o) = @_;

    $id++;
    $uri .= ($uri =~ /\?/ ? '&' : '?') . "id=$id";

    return join(', ', map { told($n->request($method, $uri, key => $id, %o)) }
                1 .. $count) . ', executed ' . executions($id);
}


# --- idempotency_bypass ------------------------------------------------------

my @b = (body => 'b');
my $bypassed = '200 BYPASS, 200 BYPASS, executed 2';
my $protected = '200 NEW, 200 REPLAYED, executed 1';

is(times_of(2, POST => '/bypass', @b), $protected, 'no value');
is(times_of(2, POST => '/bypass?bypass=', @b), $protected, 'an empty value');
is(times_of(2, POST => '/bypass?bypass=0', @b), $protected, 'a 0');
is(times_of(2, POST => '/bypass?bypass=1', @b), $bypassed, 'a 1');
is(times_of(2, POST => '/bypass?bypass=00', @b), $bypassed, 'a 00');
is(times_of(2, POST => '/bypass?bypass=no', @b), $bypassed, 'a word');
is(times_of(2, POST => '/bypass', @b, headers => [ 'X-Bypass: 1' ]), $bypassed,
   'the last of several values');
is(times_of(2, POST => '/bypass?bypass=1', @b, headers => [ 'X-Bypass: 0' ]),
   $bypassed, 'any of several values');
is(times_of(2, POST => '/bypass?bypass=0', @b, headers => [ 'X-Bypass: 0' ]),
   $protected, 'none of several values');
is(times_of(2, POST => '/always', @b), $bypassed, 'a constant');
is(times_of(2, POST => '/never', @b), $protected, 'constants that say no');

is(told($n->post('/bypass?bypass=1', @b)), '200 BYPASS', 'no key is needed');
is(told($n->post('/bypass?bypass=1', @b, key => '"')), '200 BYPASS',
   'no key is looked at');

{
    my @o = (key => 'around', @b);
    my $by = [ 'X-Bypass: 1' ];
    my $uri = '/bypass?id=around';

    is(told($n->post($uri, @o, headers => $by)), '200 BYPASS',
       'bypassed before');
    is(told($n->post($uri, @o)), '200 NEW', '... claims nothing');
    is($n->post($uri, @o, headers => $by)->{body}, "exec=3 id=around\n",
       'bypassed after: no replay, it executes');
    is(told($n->post($uri, @o, body => 'other', headers => $by)),
       '200 BYPASS', '... no conflict');
    is($n->post($uri, @o)->{body}, "exec=2 id=around\n",
       '... and what was recorded is as it was');
}


# --- off, other methods ------------------------------------------------------

my $untouched = '200 -, 200 -, executed 2';

is(times_of(2, POST => '/off', @b), $untouched, 'off');
is(times_of(2, POST => '/off/on', @b), $protected, 'on again below');
is(times_of(2, POST => '/off', @b, key => '"'), $untouched,
   'off: a malformed key is nobody\'s business');

is(times_of(2, GET => '/'), $untouched, 'GET');
is(times_of(2, GET => '/', key => '"'), $untouched, 'GET, a malformed key');
is(times_of(2, HEAD => '/'), $untouched, 'HEAD');
is(times_of(2, PUT => '/', @b), $untouched, 'PUT');
is(times_of(2, GET => '/get'), $protected, 'GET, when it is listed');

{
    is(told($n->post('/x?id=same', key => 'same')), '200 NEW', 'a POST');
    my $r = $n->get('/x?id=same', key => 'same');
    is(told($r) . ' ' . $r->{body}, "200 - exec=2 id=same\n",
       'a GET with its key is neither a replay nor a conflict');
    is(told($n->post('/x?id=same', key => 'same')), '200 REPLAYED',
       '... and the POST is what it was');
}


# --- a protocol upgrade ------------------------------------------------------

is(times_of(2, POST => '/upgrade', @b,
            headers => [ 'Upgrade: websocket', 'Connection: Upgrade' ]),
   $untouched, 'a protocol upgrade');
is(times_of(2, POST => '/upgrade', @b), $protected, '... the same without');

# what any client may offer, and nginx does not take up

for my $offer ('h2c', 'H2C', 'TLS/1.2', 'tls/1.0, HTTP/1.1') {
    is(times_of(2, POST => $_, @b,
                headers => [ "Upgrade: $offer", 'Connection: Upgrade' ]),
       $protected, "an upgrade to $offer is none, at $_") for '/x', '/upgrade';
}

is(times_of(2, POST => '/upgrade', @b, headers => [ 'Upgrade: websocket' ]),
   $protected, 'nor is one that Connection does not name');


# --- subrequests -------------------------------------------------------------

{
    my $r = $n->get('/page.html', key => 'ssi');
    is(told($r), '200 NEW', 'SSI: the page');
    is(join('', sort $r->{body} =~ /exec=.*\n/g),
       "exec=1 id=part\nexec=2 id=part\n",
       '... no subrequest is held, replayed or refused');
    is(executions('part'), 2, '... each has executed');

    # the page is the outcome, its parts are not: SSI acts on a replay too
    $r = $n->get('/page.html', key => 'ssi');
    is(told($r), '200 REPLAYED', 'SSI: the page again');
    is(join('', sort $r->{body} =~ /exec=.*\n/g),
       "exec=3 id=part\nexec=4 id=part\n", '... SSI acts on a replay');
}

is(times_of(2, POST => '/mirrored', @b), $protected,
   'mirror: the request itself');
is(until_true { executions("copy$id") }, 1,
   '... its copy is made, and made once');

# ... of requests that are not protected themselves, either

is(join(', ', map { $n->get('/off.html', key => 'off')->{body} } 1, 2),
   "exec=1 id=free\n, exec=2 id=free\n", 'SSI in a page of no concern');
is(times_of(2, POST => '/off/mirrored', @b), $untouched,
   'mirror of a request of no concern');
ok(until_true { executions("copy$id") == 2 }, '... each copy is made');

is(times_of(2, POST => '/authorised', @b), $protected,
   'auth_request: the request itself');
is(executions('auth'), 2, '... is authorised each time');


# --- dry run -----------------------------------------------------------------

is(times_of(3, POST => '/dry', @b),
   '200 NEW_DRY_RUN, 200 REPLAYED_DRY_RUN, 200 REPLAYED_DRY_RUN, executed 3',
   'dry run: never replays');

{
    my $uri = '/dry?id=dry';
    my @r = map { $n->post($uri, key => 'dry', body => 'b') } 1 .. 3;
    is(join('', map { $_->{body} } @r),
       "exec=1 id=dry\nexec=2 id=dry\nexec=3 id=dry\n",
       '... each response is its own');
    is(scalar(grep { $_->has('Idempotent-Replayed') } @r), 0, '... unmarked');

    my $r = $n->post($uri, key => 'dry', body => 'other');
    is(told($r) . " $r->{body}", "200 CONFLICT_DRY_RUN exec=4 id=dry\n",
       'dry run: no conflict is refused');
    is(last_request('dry') =~ /\n\r?\n(.*)\z/s && $1, 'other',
       '... the body goes on');
    is(told($n->post($uri, body => 'b')), '200 MISSING_DRY_RUN',
       'dry run: no key');
    is(told($n->post($uri, key => '"', body => 'b')), '200 MALFORMED_DRY_RUN',
       'dry run: a malformed key');
    is(executions('dry'), 6, '... executed each time');
    is(told($n->get($uri, key => 'dry')), '200 -', 'dry run: GET');
}

is(times_of(2, POST => '/dry?bypass=1', @b),
   '200 BYPASS_DRY_RUN, 200 BYPASS_DRY_RUN, executed 2', 'dry run: bypassed');
is(times_of(3, POST => '/dry/small', @b),
   '200 NEW_DRY_RUN, 200 NOT_KEPT_DRY_RUN, 200 NOT_KEPT_DRY_RUN, executed 3',
   'dry run: not kept');
is(times_of(2, POST => '/dry/2xx?status=500', @b),
   '500 NEW_DRY_RUN, 500 NEW_DRY_RUN, executed 2', 'dry run: released');

{
    # nobody waits: both are at the upstream at one time
    my @c = map {
        my $c = $n->start('POST', '/dry?id=held&gate=1', key => 'held',
                          body => 'b');
        held('held', $_);
        $c;
    } 1, 2;

    go('held');
    is(join(', ', map { told($_->response) } @c),
       '200 NEW_DRY_RUN, 200 IN_PROGRESS_DRY_RUN', 'dry run: never waits');
    is(executions('held'), 2, '... executed twice');
}

done_testing();
