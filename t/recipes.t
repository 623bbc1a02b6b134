#!/usr/bin/perl

# docs/recipes/: each configuration stands there as it is run here, and does what
# its page says. Only its addresses are others: those of the application (the
# counting upstream) and of nginx itself.

use lib 't/lib';
use Idempotency;
use Pages;
use Redis;
use Restart;

my %recipe = (
    'agentic-commerce'         => \&agentic_commerce,
    'behind-a-cdn'             => \&behind_a_cdn,
    'cors'                     => \&cors,
    'docker'                   => \&docker,
    'early-data'               => \&early_data,
    'expiry'                   => \&expiry,
    'graphql'                  => \&graphql,
    'jwt'                      => \&jwt,
    'kubernetes'               => \&kubernetes,
    'languages'                => \&languages,
    'lost-answers'             => \&lost_answers,
    'mobile-clients'           => \&mobile_clients,
    'multi-tenant'             => \&multi_tenant,
    'postgrest'                => \&postgrest,
    'rails-and-laravel-forms'  => \&rails_and_laravel,
    'restarts'                 => \&restarts,
    'stripe-like-api'          => \&stripe_like_api,
    'switch-off'               => \&switch_off,
    'transient-errors'         => \&transient_errors,
    'webhooks'                 => \&webhooks,
);

my $browser = 'Sec-Fetch-Mode: navigate';
my $form = 'application/x-www-form-urlencoded';
my $json = 'application/json';

# a service that knows whose token it is
my $verify = <<'EOC';
map $http_authorization $subject_of_token {
    "~^Bearer (?<name>alice|bob)\." $name;
}

server {
    listen 127.0.0.1:$TEST_NGINX_RAND_PORT_2;
    server_name verify;

    location / {
        if ($subject_of_token = "") { return 401; }
        add_header X-Subject $subject_of_token;
        return 204;
    }
}
EOC

my %blocks = map {
    my ($name) = m{([^/]+)\.md$};
    my @blocks = blocks($_, 'nginx');
    @blocks ? ($name => \@blocks) : ();
} grep { m{^docs/recipes/} } pages();

is_deeply([sort keys %blocks], [sort keys %recipe],
          'every page with a configuration is tested');

for my $page (sort keys %recipe) {
    subtest $page => sub { $recipe{$page}->(map { $_->{text} } @{$blocks{$page}}) };
}

done_testing();


# --- what the pages say ------------------------------------------------------

sub stripe_like_api {
    my ($text) = @_;
    my $n = start($text);
    my $error = sub {
        my ($r, $status, $type, $code, $retry, $name) = @_;

        is($r->{status}, $status, "$name: $status") or diag($r->{raw});
        is($r->header('Content-Type'), $json, '... as JSON');
        like($r->{body}, qr/^\{"error":\{"type":"$type","code":"$code","message":"[^"]{10,}"\}\}$/,
             "... $code, of type $type");
        is($r->header('Stripe-Should-Retry'), $retry, "... worth a retry: $retry");
        is($r->header('Link'), undef, '... once') unless $status == 409;
    };
    my @me = (headers => ['Authorization: Bearer sk_1', 'Stripe-Version: 1'], type => $form);

    my $first = $n->post('/v1/charges', key => 'c1', body => 'amount=1', @me);

    same_replay($first, $n->post('/v1/charges', key => 'c1', body => 'amount=1', @me),
                'a charge is replayed');

    $error->($n->post('/v1/charges', key => 'c1', body => 'amount=2', @me),
             400, 'idempotency_error', 'conflict', 'false', 'another amount');
    $error->($n->post('/v1/charges', key => 'c1', body => 'amount=1', type => $form,
                      headers => ['Authorization: Bearer sk_1', 'Stripe-Version: 2']),
             400, 'idempotency_error', 'conflict', 'false', 'another version');
    $error->($n->post('/v1/charges', key => 'k' x 256, body => 'amount=1', @me),
             400, 'invalid_request_error', 'malformed', 'false', 'too long a key');

    my $slow = $n->start('POST', '/v1/slow?gate=1&id=slow', key => 'slow', body => 'a=1', @me);

    held('slow');
    my $early = $n->post('/v1/slow?gate=1&id=slow', key => 'slow', body => 'a=1', @me);
    $error->($early, 409, 'idempotency_error', 'idempotency_key_in_use', 'true', 'too early');
    is($early->header('Retry-After'), 1, '... with Retry-After');
    go('slow');
    same_replay($slow->response,
                $n->post('/v1/slow?gate=1&id=slow', key => 'slow', body => 'a=1', @me),
                'later it is replayed');

    for (['declined', 402, 1], ['broken', 500, 1], ['invalid', 422, 2]) {
        my ($id, $status, $times) = @$_;

        $n->post("/v1/x?id=$id&status=$status", key => $id, body => 'a=1', @me) for 1, 2;
        is(executions($id), $times, "two answered $status: executed $times times");
    }

    $n->request(PATCH => '/v1/x?id=patch', key => 'patch', body => 'a=1', @me) for 1, 2;
    is(executions('patch'), 2, 'only POST has keys');

    # the same key of a platform for two of its accounts

    my @for = map { [ headers => ['Authorization: Bearer sk_1', "Stripe-Account: acct_$_"], type => $form ] } 1, 2;

    is($n->post('/v1/x?id=account', key => 'a', body => 'a=1', @{$for[0]})->{status}, 200, 'for an account');
    $error->($n->post('/v1/x?id=account', key => 'a', body => 'a=1', @{$for[1]}),
             400, 'idempotency_error', 'conflict', 'false', 'for another one');

    # the application closes, and may have executed

    for my $again (0, 1) {
        my $r = $n->post('/v1/x?id=unknown&close=1', key => 'unknown', body => 'a=1', @me);

        $error->($r, 502, 'api_error', 'outcome_unknown', 'false', $again ? 'the same again' : 'no answer');
        like($r->{body}, qr/Whether the request was executed is not known/, '... in doubt');
        is($r->replayed ? 1 : 0, $again, '... recorded');
    }

    is(executions('unknown'), 1, '... and executed once');

    is($n->post('/v1/charges', body => 'amount=1', @me)->{status}, 200, 'a key is optional');
    is(executions('/v1/charges'), 2, 'the charge was executed once');

    # ... or can't be reached

    my $dead = start($text, '127.0.0.1:8001' => '$TEST_NGINX_DEAD');

    for (1, 2) {
        my $r = $dead->post('/v1/x', key => 'dead', body => 'a=1', @me);

        $error->($r, 502, 'api_error', 'not_executed', 'true', 'nobody listens');
        ok(!$r->replayed, '... and the key is free');
    }

    my $own = $n->post('/v1/x?status=400&ct=application/json&body=%7B%22error%22:1%7D',
                       key => 'own', body => '', @me);
    is($own->{body}, '{"error":1}', "the application's errors pass as they are");
}


# As somebody sends it who has recorded what a client sent with its ticket: the
# same bytes, as often as he likes. He can't go on with the handshake.

sub early_data {
    my $pki = certificate();
    my $n = start("log_format early '\$request_method \$status [\$ssl_early_data]';\n"
                  . "access_log logs/access.log early;\n" . shift,
                  '/etc/nginx/tls/api.pem' => "$pki/cert.pem",
                  '/etc/nginx/tls/api.key' => "$pki/key.pem");
    my $file = $n->root . '/early';

    my $client = sub {
        my ($message, $port, @how) = @_;

        open my $f, '>:raw', "$file.sent" or die $!;
        print $f $message;
        close $f;

        my $in = grep({ $_ eq '-early_data' } @how) ? '/dev/null' : "$file.sent";

        return "openssl s_client -connect 127.0.0.1:$port -servername api.example -tls1_3 "
               . "-ign_eof @how <$in 2>&1";
    };
    my $send = sub { return message(@_, host => 'api.example', close => 1) };

    my $visit = $client->($send->(GET => '/?id=ticket'), $n->port, '-sess_out', "$file.ticket");
    like(`$visit`, qr{HTTP/1\.1 200 }, 'a first visit, for a ticket');

    # what it sends before it hears anything: records up to one of data

    my $recorded = sub {
        my $listen = IO::Socket::INET->new(Listen => 1, LocalAddr => '127.0.0.1') or die $!;

        open my $client, '-|', 'exec ' . $client->($_[0], $listen->sockport, '-sess_in', "$file.ticket",
                                                   '-early_data', "$file.sent") or die $!;

        my $c = $listen->accept;
        my ($bytes, $type) = ('', 0);

        while ($type != 23) {
            my $from = length $bytes;

            read($c, $bytes, 5, $from) == 5 or die 'no early data';
            $type = ord substr $bytes, $from;
            read $c, $bytes, unpack('n', substr $bytes, -2), length $bytes;
        }

        close $c;
        close $client;
        return $bytes;
    };

    my $copies = 0;

    for (['GET', 200], ['POST', 425], ['POST', 425, key => 'early'], ['DELETE', 425]) {
        my ($method, $status, @o) = @$_;
        my $bytes = $recorded->($send->($method, "/?id=early-$method", @o));

        for my $copy (1, 2) {
            my $c = $n->connect;

            $c->send($bytes);
            until_true { (() = $n->access_log =~ /\[1\]$/mg) == $copies + 1 };
            like($n->access_log, qr/\n$method $status \[1\]\n\z/, "early data: $method @o is answered $status");
            $copies++;
            $c->close;
        }
    }

    is(executions("early-$_"), 0, "no $_ was executed") for 'POST', 'DELETE';
    is(executions('early-GET'), 2, 'what reads was');

    for my $answer ('200 ', '200 .*Idempotent-Replayed: true') {
        my $post = $client->($send->(POST => '/?id=early-POST', key => 'early'), $n->port);

        like(`$post`, qr{HTTP/1\.1 $answer}s, 'behind the handshake the key is free, and bound');
    }

    is(executions('early-POST'), 1, '... and executed once');
}


sub transient_errors {
    my $n = start(shift);
    my $times = sub {
        my ($id, $at, $does) = @_;

        my @r = map $n->post("$at?id=$id&$does", key => $id, body => 'a=1') , 1, 2;
        return executions($id) . " $r[0]{status} $r[1]{status}";
    };

    is($times->("d$_", '/', "status=$_"), "2 $_ $_", "$_ is executed again") for 500, 503, 429;
    is($times->("d$_", '/', "status=$_"), "1 $_ $_", "... $_ is not") for 200, 404, 502, 504;
    is($times->('doubt', '/', 'rst=1'), '1 502 502', '... nor what is in doubt');

    is($times->("p$_", '/protocol/', "status=$_"), "2 $_ $_", "no 5xx is kept: $_")
        for 500, 502, 503, 504, 599;
    is($times->("p$_", '/protocol/', "status=$_"), "1 $_ $_", "... but $_") for 201, 422;
    is($times->('again', '/protocol/', 'rst=1'), '2 502 502', '... not even one that nginx made');

    my $first = $n->start('POST', '/?id=waited&gate=1&status=503', key => 'waited');

    held('waited');
    my $second = $n->start('POST', '/?id=waited&gate=1&status=503', key => 'waited');

    ok(!$second->readable(0.3), 'a duplicate waits');
    go('waited');
    is(join(' ', map { $_->response->{status} } $first, $second), '503 503', '... and gets the error');
    is(executions('waited'), 1, '... without being executed');
}


sub webhooks {
    my $n = start(shift);
    my $github = sub {
        my ($id, $uri, %o) = @_;
        return $n->post("/github?$uri", body => '{"action":"opened"}', type => $json,
                        headers => ["X-GitHub-Delivery: $id"], %o);
    };

    same_replay($github->('d1', 'id=d1'), $github->('d1', 'id=d1'), 'GitHub: a delivery again');
    is(executions('d1'), 1, '... is executed once');

    $github->('d2', 'id=d2&status=500');
    is($github->('d2', 'id=d2&status=202')->{status}, 202, 'GitHub: Redeliver after 500');
    is(executions('d2'), 2, '... executes');
    ok($github->('d2', 'id=d2&status=202')->replayed, '... and that is final');

    $github->('d3', 'id=d3&status=401');
    is($github->('d3', 'id=d3')->replayed, '', 'a forged one before it takes no identifier');

    my $r = $github->('d4', 'id=d4&close=1');
    is($r->{status}, 502, 'the application broke off');
    is($github->('d4', 'id=d4')->{status}, 200, '... the repeat is executed');

    my $gone = $n->start('POST', '/github?id=d5&gate=1', body => '{}', type => $json,
                         headers => ['X-GitHub-Delivery: d5']);
    held('d5');
    $gone->close;
    go('d5');
    $r = $github->('d5', 'id=d5&gate=1', body => '{}');
    ok($r->replayed || $r->{status} == 409, 'a sender that gave up gets the result later')
        or diag($r->{raw});
    is(executions('d5'), 1, '... which was made once');

    my $stripe = sub {
        my ($event, $signature) = @_;
        return $n->post('/stripe?id=stripe', body => $event, type => $json,
                        headers => ["Stripe-Signature: $signature"]);
    };

    same_replay($stripe->('{"id":"evt_1","pending_webhooks":2,"data":{"amount":1}}', 't=1,v1=a'),
                $stripe->('{"id":"evt_1","pending_webhooks":1,"data":{"amount":1}}', 't=2,v1=b'),
                'Stripe: an event again, signed anew');
    is($stripe->('{"id":"evt_1","data":{"amount":2}}', 't=3,v1=c')->{status}, 409,
       'Stripe: with other data it is refused');
    $stripe->('{"id":"evt_2","data":{"amount":1}}', 't=3,v1=c');
    is(executions('stripe'), 2, 'Stripe: another event is another one');
    is($github->('evt_1', 'id=evt_1')->{status}, 200, "GitHub's identifiers are not Stripe's");

    my $shopify = sub {
        my ($id, $topic) = @_;
        return $n->post('/shopify?id=shopify', body => '{"id":820982911}', type => $json,
                        headers => ["X-Shopify-Event-Id: $id", "X-Shopify-Topic: $topic",
                                    'X-Shopify-Shop-Domain: a.example']);
    };

    same_replay($shopify->('e1', 'orders/create'), $shopify->('e1', 'orders/create'),
                'Shopify: an event again');
    is($shopify->('e1', 'orders/paid')->replayed, '', 'Shopify: for another topic');
    is(executions('shopify'), 2, '... is executed');
}


sub languages {
    my ($text) = @_;
    my $refusals = text('share/refusals.conf');
    my $n = start("$refusals\n$text");
    my @names = section('docs/refusals.md', 'Refusals') =~ /^\| `(\w+)` \|/mg;
    my @languages = qw(de es fr ja pt zh);
    my %words;

    $words{$1}{$2} = $3 while $refusals =~ /^    "(\w\w) (\w+)" +"([^"]*)";$/mg;

    is(join(' ', sort keys %words), "@languages", 'its languages');

    for my $language (@languages) {
        my %has = %{$words{$language}};

        is(join(' ', sort keys %has), join(' ', sort @names), "$language: each refusal has its words");
        is(join(' ', grep { $has{$_} !~ m{\A<h1>[^<]+</h1>\n<p>[^<]+</p>\n<p>[^<]+</p>\z} } keys %has),
           '', '... a heading, what happened, and what to do');
    }

    my $asks = sub {
        my ($language, $accept, $at, %o) = @_;

        return $n->post($at // '/?id=lang', key => 'lang', body => 'other', type => $form, %o,
                        headers => ["Accept: $accept", $language ? "Accept-Language: $language" : ()]);
    };
    my $html = 'text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8';
    my $english = qr/<html lang="en">/;

    is($n->post('/?id=lang', key => 'lang', body => 'one', type => $form,
                headers => ["Accept: $html", 'Accept-Language: de'])->{status}, 200, 'a form, in German');
    is($n->post('/?id=lang', key => 'lang', body => 'one', type => $form)->replayed, 1, '... and again, in none');

    my $own = $asks->('', $html);
    my ($style) = $own->{body} =~ m{(<style>.*?</style>)}s;

    like($own->{body}, $english, 'no language is English');

    for (map([$_, $_], @languages), ['de', 'de-AT,de;q=0.9,en;q=0.8'], ['fr', 'it, nl;q=0.9, fr;q=0.8, de;q=0.7'],
         ['zh', 'zh-CN'], ['pt', 'PT-BR'])
    {
        my ($language, $said) = @$_;
        my $r = $asks->($said, $html);

        is($r->{status}, 409, "$said: 409");
        is($r->header('Content-Type'), 'text/html; charset=utf-8', '... a page');
        like($r->{body}, qr{<html lang="$language">.*\Q$words{$language}{conflict}\E\n</body>}si, "... $language");
        like($r->{body}, qr/\Q$style\E/, "... in the module's style");
    }

    like($asks->($_, $html)->{body}, $english, "$_: English") for 'en', 'en-GB, de;q=0.5', 'it', '*', 'den', 'x|de', '"\\';

    for ('application/json', '*/*', 'application/problem+json, text/html;q=0.1', '') {
        like($asks->('de', $_)->{body}, qr/^\{"type":"urn:idempotency:conflict"/, "no page: $_");
    }

    my @clicks = map { $n->post('/?id=click', body => 'a=1', type => $form,
                                headers => [$browser, "Accept: $html", 'Accept-Language: fr']) } 1, 2;
    same_replay(@clicks, 'two clicks of somebody who reads French');

    my $slow = $n->start('POST', '/orders?gate=1&id=orders', key => 'orders', type => $form);

    held('orders');
    my $early = $n->post('/orders?gate=1&id=orders', key => 'orders', type => $form);
    is($early->{status}, 202, 'pending: 202');
    like($early->{body}, qr/^\{"state":"pending","message":"[^"]{20,}"\}$/, '... in its own shape');
    is($early->header('Retry-After'), 1, '... with Retry-After');
    go('orders');
    same_replay($slow->response, $n->post('/orders?gate=1&id=orders', key => 'orders', type => $form),
                'later it is replayed');
    is(executions($_), 1, "$_: executed once") for 'lang', 'click', 'orders';
}


sub rails_and_laravel {
    my $n = start(shift);
    my $post = sub {
        my ($uri, $body, $cookies, @more) = @_;
        return $n->post($uri, body => $body, type => $form,
                        headers => [$browser, "Cookie: $cookies", @more]);
    };

    my ($visitor) = ($n->get('/new?ct=text/html')->header('Set-Cookie') // '')
                    =~ /^(visitor=[0-9a-f]{32}); Path=\/; HttpOnly; SameSite=Lax$/
        or fail('the first page has a cookie');

    my $again = $n->request(GET => '/new?ct=text/html', headers => ["Cookie: $visitor"]);
    is($again->header('Set-Cookie'), undef, 'the next one has none');

    my $first = $post->('/orders?id=rails&status=303&h=Location:%20/orders/1'
                        . '&h=Set-Cookie:%20_app_session=two',
                        'authenticity_token=a&item=1&commit=Save', "$visitor; _app_session=one");

    like($first->header('Set-Cookie'), qr/_app_session=two/, 'the session cookie is renewed');

    $again = $post->('/orders?id=rails&status=303&h=Location:%20/orders/1'
                     . '&h=Set-Cookie:%20_app_session=two',
                     'authenticity_token=b&item=1&commit=Save', "$visitor; _app_session=two");
    ok($again->replayed, 'a form again, with the new cookie and another CSRF token, is replayed');
    is(executions('rails'), 1, '... executed once');
    like($again->header('Location'), qr{/orders/1$}, '... and leads to the same place');

    $post->('/orders?id=rails&status=303&h=Location:%20/orders/1'
            . '&h=Set-Cookie:%20_app_session=two',
            'authenticity_token=c&item=1&commit=Save', 'visitor=other; _app_session=two');
    is(executions('rails'), 2, "another visitor's is another one");

    $post->('/orders?id=wrong&status=422', 'authenticity_token=a&item=', $visitor) for 1, 2;
    is(executions('wrong'), 2, 'Rails: 422 is not final');

    $post->('/orders?id=errors&status=302&h=Location:%20/new&h=X-Accel-Idempotency:%20release',
            '_token=a&item=', $visitor) for 1, 2;
    is(executions('errors'), 2, 'Laravel: nor is the redirect back to the form');

    $post->('/orders?id=taken&status=302&h=Location:%20/orders/2', "_token=$_&item=3", $visitor)
        for 'a', 'b';
    is(executions('taken'), 1, 'Laravel: any other is');

    my @token = ('submission_token=t1&item=4', $visitor);
    my $token = $post->('/orders?id=token&status=303&h=Location:%20/orders/4', @token);

    same_replay($token, $post->('/orders?id=token&status=303&h=Location:%20/orders/4', @token),
                "the guard's token is a key");
    is($post->('/orders?id=token&status=303&h=Location:%20/orders/4',
               'submission_token=t1&item=5', $visitor)->{status}, 409, '... for one content');

    like($n->request(POST => '/sign_out?ct=text/html', body => '',
                     headers => ["Cookie: $visitor"])->header('Set-Cookie') // '',
         qr/^visitor=(?!\Q$visitor\E)/, 'who logs out is somebody else');
    like($n->request(DELETE => '/session?ct=text/html',
                     headers => ["Cookie: $visitor"])->header('Set-Cookie') // '',
         qr/^visitor=/, '... by DELETE as well');
}


sub jwt {
    my $n = start(shift, '127.0.0.1:8002' => '127.0.0.1:$TEST_NGINX_RAND_PORT_2');
    my $post = sub {
        my ($token, $key) = @_;
        return $n->post('/orders?id=jwt', key => $key, body => 'a=1',
                        headers => ["Authorization: Bearer $token"]);
    };

    my $first = $post->('alice.1', 'j1');

    is($first->{status}, 200, 'a request');
    same_replay($first, $post->('alice.2', 'j1'), 'its retry with a refreshed token is replayed');
    is($post->('bob.1', 'j1')->{status}, 409, "another user's is refused");

    for my $key ('j1', 'j2') {
        my $r = $post->('forged', $key);

        is($r->{status}, 401, "$key: a token that is no good gets 401");
        ok(!$r->replayed, '... and no replay');
    }

    is($post->('bob.1', 'j2')->{status}, 200, 'it used up no key');
    is(executions('jwt'), 2, 'two were executed');
}


sub cors {
    my $n = start(shift);
    my $shop = 'Origin: https://shop.example';
    my $exposed = 'Idempotent-Replayed, Retry-After, Link';

    my $preflight = $n->request(OPTIONS => '/orders', headers => [
        $shop, 'Access-Control-Request-Method: POST',
        'Access-Control-Request-Headers: content-type,idempotency-key']);

    is($preflight->{status}, 204, 'a preflight is answered');
    is(executions('/orders'), 0, '... and asks nobody');
    is($preflight->header('Access-Control-Allow-Origin'), 'https://shop.example',
       '... admits the origin');
    like($preflight->header('Access-Control-Allow-Headers'), qr/\bIdempotency-Key\b/,
         '... and the key');
    is($preflight->header('Access-Control-Allow-Credentials'), 'true', '... and cookies');
    is($preflight->header('Access-Control-Allow-Methods'), 'GET, POST, PATCH, DELETE',
       '... and the methods');
    is($preflight->header('Access-Control-Max-Age'), 600, '... for ten minutes');
    is($preflight->header('Vary'), 'Origin', '... and no cache gives it to others');
    is($n->request(OPTIONS => '/orders', headers => ['Origin: https://evil.example'])
         ->header('Access-Control-Allow-Origin'), undef, '... but no other origin');

    my @same = (key => 'c1', headers => [$shop]);
    my $own = '/orders?id=cors&h=Access-Control-Allow-Origin:%20*'
              . '&h=Access-Control-Allow-Credentials:%20true&h=Access-Control-Expose-Headers:%20X-A';
    my $first = $n->post($own, body => 'a=1', @same);
    my $again = $n->post($own, body => 'a=1', @same);
    my $refused = $n->post($own, body => 'a=2', @same);

    same_replay($first, $again, 'a replay has the same headers');
    is($refused->{status}, 409, 'another request is refused');

    for ([$first, 'the first'], [$again, 'the replay'], [$refused, 'the refusal']) {
        my ($r, $name) = @$_;

        is($r->header('Access-Control-Allow-Origin'), 'https://shop.example',
           "$name: for the origin, once");
        is($r->header('Access-Control-Allow-Credentials'), 'true', "$name: with cookies");
        is($r->header('Access-Control-Expose-Headers'), $exposed, "$name: what may be read");
        is($r->header('Vary'), 'Origin', "$name: Vary");
    }

    is($n->post($own, key => 'c1', body => 'a=1', headers => ['Origin: https://evil.example'])
         ->header('Access-Control-Allow-Origin'), undef, 'a replay for another origin is not readable');
}


sub graphql {
    my $n = start(shift);
    my $post = sub {
        my ($uri, $body, @o) = @_;
        return $n->post($uri, body => $body, type => $json, @o);
    };

    $post->('/graphql?id=query', '{"query":"{ orders { id } }"}') for 1, 2;
    is(executions('query'), 2, 'a query without a key is executed each time');

    my $first = $post->('/graphql?id=m', '{"query":"mutation { pay }","variables":{}}', key => 'm');

    same_replay($first, $post->('/graphql?id=m', '{"variables": {}, "query": "mutation { pay }"}',
                                key => 'm'),
                'a mutation with a key is replayed, also if the JSON is written differently');
    is($post->('/graphql?id=m', '{"query":"mutation {  pay }","variables":{}}', key => 'm')->{status},
       409, 'white space in the document counts');

    my $released = '/graphql?id=apq&h=X-Accel-Idempotency:%20release';
    my $short = '{"extensions":{"persistedQuery":{"sha256Hash":"00"}}}';
    my $full = '{"query":"mutation { pay }","extensions":{"persistedQuery":{"sha256Hash":"00"}}}';

    ok(!$post->($released, $short, key => 'apq')->has('X-Accel-Idempotency'),
       'nginx keeps X-Accel-Idempotency to itself');
    is($post->('/graphql?id=apq', $full, key => 'apq')->{status}, 200,
       'PersistedQueryNotFound with it: the full mutation is executed');
    is(executions('apq'), 2, '... with the same key');

    $post->('/graphql?id=apq2', $short, key => 'apq2');
    is($post->('/graphql?id=apq2', $full, key => 'apq2')->{status}, 409,
       'without it: a conflict');

    $first = $post->('/graphql?id=failed&body=%7B%22errors%22%3A%5B%5D%7D', $full, key => 'failed');
    same_replay($first, $post->('/graphql?id=failed&body=%7B%22errors%22%3A%5B%5D%7D', $full,
                                key => 'failed'),
                'an error in a 200 is a result');
}


sub mobile_clients {
    my $n = start(shift, '127.0.0.1:8002' => '127.0.0.1:$TEST_NGINX_RAND_PORT_2');
    my $post = sub {
        my ($uri, $key, %o) = @_;
        return $n->post($uri, defined $key ? (key => $key) : (), body => '{"a":1}', type => $json,
                        headers => ['Authorization: Bearer ' . ($o{token} // 'alice.1')]);
    };

    my $key = uuid7(1);
    my $first = $post->('/queue?id=q', $key);

    is($first->{status}, 200, 'a request');
    same_replay($first, $post->('/queue?id=q', $key, token => 'alice.2'),
                'a retry with a refreshed token is replayed');
    is($post->('/queue?id=q', $key, token => 'expired')->{status}, 401,
       'with a token that has expired it is 401');

    my $late = $post->('/queue?id=late', uuid7(7 * 86400 + 60));

    is($late->{status}, 409, 'a key of more than a week is refused');
    like($late->{body}, qr/idempotency:expired"/, '... as expired');
    is(executions('late'), 0, '... and not executed');
    is($post->('/queue?id=old', uuid7(7 * 86400 - 3600))->{status}, 200, 'one of less is not');

    is($post->('/queue', uuid7(-3600))->{status}, 400, 'a clock that is fast: 400');
    is($post->('/queue', 'abc')->{status}, 400, 'another kind of key: 400');
    is($post->('/queue')->{status}, 400, 'none: 400');

    $key = uuid7(2);
    my $gone = $n->start('POST', '/queue?id=gone&gate=1', key => $key, body => '{"a":1}',
                         type => $json, headers => ['Authorization: Bearer alice.1']);
    held('gone');
    $gone->close;
    my $retry = $n->start('POST', '/queue?id=gone&gate=1', key => $key, body => '{"a":1}',
                          type => $json, headers => ['Authorization: Bearer alice.2']);
    go('gone');
    ok($retry->response->replayed, 'a client that went away: the retry gets the result');
    is(executions('gone'), 1, '... of the one execution');
}


sub multi_tenant {
    my ($text) = @_;

    # so many requests would take too long
    $text =~ s/idempotency_quota 5000 /idempotency_quota 2 / or die 'no quota of 5000';

    my $n = start($text);
    my $post = sub {
        my ($tenant, $key) = @_;
        return $n->post('/orders?id=tenants', key => $key, body => 'a=1',
                        host => "$tenant.shops.example");
    };

    my $first = $post->('acme', '1');

    same_replay($first, $post->('acme', '1'), 'a retry is replayed');
    is($post->('globex', '1')->{status}, 200, 'the same key of another tenant is executed');
    is(executions('tenants'), 2, '... as an order of its own');

    is($post->('acme', '2')->{status}, 200, 'as many as the quota allows');
    is($post->('acme', '3')->{status}, 429, 'one more is refused');
    ok($post->('acme', '1')->replayed, 'a retry is not');
    is($post->('globex', '2')->{status}, 200, 'nor is another tenant');
}


sub behind_a_cdn {
    my ($text) = @_;

    $text =~ s/idempotency_quota 1000;/idempotency_quota 2;/ or die 'no quota of 1000';

    my $n = start($text);
    my $post = sub {
        my ($visitor, @more) = @_;
        return $n->post('/contact?id=cdn', body => 'text=hello', type => $form,
                        headers => [$browser, "X-Forwarded-For: $visitor", @more]);
    };

    my $first = $post->('192.0.2.1');

    same_replay($first, $post->('192.0.2.1'), 'a form again is replayed');
    same_replay($first, $post->('192.0.2.7, 192.0.2.1'), '... whatever the visitor says himself');
    is($post->('192.0.2.2')->replayed, '', "another visitor's is another one");
    is(executions('cdn'), 2, 'two were executed');

    $first = $n->post('/x?id=cookies', key => 'c', body => 'a=1',
                      headers => ['Cookie: __cf_bm=1; AWSALB=2; s=1']);
    same_replay($first, $n->post('/x?id=cookies', key => 'c', body => 'a=1',
                                 headers => ['Cookie: __cf_bm=3; AWSALB=4; s=1']),
                "the CDN's cookies do not count");

    my $new = sub {
        my ($visitor, $key) = @_;
        return $n->post('/x', key => $key, body => '', headers => ["X-Forwarded-For: $visitor"]);
    };

    is($new->('192.0.2.3', $_)->{status}, 200, 'as many as the quota allows') for 'q1', 'q2';
    is($new->('192.0.2.3', 'q3')->{status}, 429, 'one more is refused');
    is($new->('192.0.2.4', 'q3')->{status}, 200, "another visitor's is not");
}


sub expiry {
    my $n = start(shift);

    cmp_ok($n->post('/x', key => 'e', body => 'a')->header('Idempotency-Expires'), '==', 86400, 'a first answer');
    cmp_ok($n->post('/x', key => 'e', body => 'a')->header('Idempotency-Expires'), '>', 86000, 'a replay');
    cmp_ok($n->post('/x', key => 'e', body => 'b')->header('Idempotency-Expires'), '>', 86000, 'a conflict');
    is($n->post('/x', body => 'a')->header('Idempotency-Expires'), undef, 'no key: no header');
}


sub switch_off {
    my $n = start(shift, '/etc/nginx/idempotency.off' => '$TEST_NGINX_ROOT/off');
    my $off = $n->root . '/off';
    my $executed = sub { $n->post('/x?id=off', key => 's', body => 'a')->header('X-Exec') };

    is($executed->(), 1, 'a request');
    is($executed->(), 1, 'its retry is not executed');

    open my $f, '>', $off or die "$off: $!\n";
    close $f;
    is($executed->(), 2, 'the file is there: it is');

    unlink $off;
    is($executed->(), 1, 'it is gone: what was recorded is known');
}


sub postgrest {
    my $n = start(shift);
    my @o = (key => 'r', body => '{"a":1}');
    my $prefer = sub { $n->post('/orders?id=rest', @o, headers => ["Prefer: return=$_[0]"])->{status} };

    is($prefer->('representation'), 200, 'an insert');
    is($prefer->('representation'), 200, 'its retry');
    is(executions('rest'), 1, '... is not executed');
    is($prefer->('minimal'), 409, 'another answer is another request');

    is($n->post('/x?id=unique&status=409', key => 'u', body => 'a')->header('X-Exec'), 1, 'a constraint');
    is($n->post('/x?id=unique&status=409', key => 'u', body => 'a')->header('X-Exec'), 1, '... is final');
}


sub agentic_commerce {
    my $n = start(shift);
    my $ask = sub { $n->post("/checkout_sessions/1/complete?id=$_[0]&status=" . ($_[1] // 200), key => $_[0], body => $_[2] // 'a') };

    is($ask->('a')->header('X-Exec'), 1, 'a checkout');
    is($ask->('a')->header('X-Exec'), 1, 'its retry');

    my $r = $ask->('a', 200, 'b');
    is($r->{status}, 409, 'with other parameters');
    like($r->{body}, qr/^\{"type":"invalid_request","code":"idempotency_conflict","message":"[^"]+"\}$/, '... in its own shape');
    is($r->header('Idempotency-Key'), 'a', '... and the key');

    my $first = $ask->('b', 500)->header('X-Exec');
    is($ask->('b', 500)->header('X-Exec'), $first + 1, 'a 5xx is not kept');

    $r = $n->post('/checkout_sessions', body => 'a');
    is($r->{status}, 400, 'a key is required');
    like($r->{body}, qr/"code":"missing"/, '... in its own shape');
}


sub docker {
    my $n = start(shift, '127.0.0.1:8000' => undef, '127.0.0.1:8001' => undef,
                  '80' => '127.0.0.1:$TEST_NGINX_PORT', 'app:8080' => '$TEST_NGINX_BACKEND');
    my $first = $n->post('/orders', key => 'd', body => 'a=1');

    is($first->header('X-Idempotency-Status'), 'NEW', 'a request');
    is($n->post('/orders', key => 'd', body => 'a=1')->header('X-Idempotency-Status'), 'REPLAYED',
       'its retry');
}


sub lost_answers {
    my $n = start(shift, '127.0.0.1:8002' => '127.0.0.1:$TEST_NGINX_RAND_PORT_1',
                  '/var/log/nginx' => '$TEST_NGINX_ROOT/logs');
    my @me = (headers => ['Authorization: Bearer me']);
    my $support = 'http://127.0.0.1:' . $n->port(1);
    my $ask = sub {
        my ($key, @who) = @_;
        my $r = $n->get('/outcome', key => $key, @who ? @who : @me);

        return join ' ', $r->{status}, $r->{body} =~ /"outcome":"(\w+)"/, $r->{body} =~ /"status":(\d+)/
            if $r->{status} == 200;
        return $r->{status};
    };

    is($ask->('l1'), '200 unknown', 'never sent');

    my $first = $n->start('POST', '/?id=l1&gate=1&status=201', key => 'l1', body => 'a=1', @me);

    held('l1');
    is($ask->('l1'), '200 pending', 'being executed');
    go('l1');
    $first->response;
    is($ask->('l1'), '200 done 201', 'done');
    is($ask->('l1', headers => ['Authorization: Bearer you']), 404, 'for nobody else');
    is($ask->('l1', headers => ['Accept: */*']), 404, 'nor for nobody');
    is($n->post('/?id=l1', body => 'a=1', @me)->{status}, 400, 'a key is required');

    my $find = sub {
        my ($method, @more) = @_;

        return $n->curl('-X', $method, '-H', 'Idempotency-Key: l1', @more,
                        "$support/zones/orders/records?scope=orders.example");
    };

    like($find->('GET')->{body}, qr/"outcome":"done","status":201/, 'the support desk finds it');
    like($n->curl("$support/")->{body}, qr/<title>Idempotency/, '... on a page as well');
    is($find->('PUT', '-d', 'done')->{status}, 409, '... it is not in doubt');
    is($find->('DELETE')->{status}, 204, '... and can be forgotten');
    is($ask->('l1'), '200 unknown', '... so that it is fresh again');
}


sub kubernetes {
    my ($front, $pod, $shared) = @_;

    my @pods = map {
        start($pod, '127.0.0.1:8000' => undef, '8000' => '127.0.0.1:$TEST_NGINX_PORT')
    } 1, 2;

    my $n = start($front, '127.0.0.1:8001' => undef,
                  map { ("shop-$_.shop:8000" => '127.0.0.1:' . $pods[$_]->port) } 0, 1);
    my $post = sub {
        my ($at, $key, $written) = @_;
        return $at->post("/orders?id=$key", key => $written // $key, body => 'a=1',
                         host => 'shop.example');
    };
    my @keys = map { "k$_" } 1 .. 24;

    for my $key (@keys) {
        is($post->($n, $key)->{status}, 200, "$key: a request");
        ok($post->($n, $key, qq("$key"))->replayed, '... its retry, with quotes, finds the same pod');
    }

    my $here = grep { $post->($pods[0], $_)->replayed } @keys;

    ok($here > 0 && $here < @keys, "both pods have some of the keys ($here of 24)");

    $n->post('/orders?id=none', body => 'a=1') for 1 .. 8;
    is(executions('none'), 8, 'without a key each is executed');

    my $before = join ' ', map { executions($_) } @keys;

    $pods[0]->stop;

    my %status = map { $post->($n, $_)->{status} => 1 } @keys;

    is_deeply([sort keys %status], [200, 502], 'without its pod a key is refused');
    is(join(' ', map { executions($_) } @keys), $before, '... and not executed by the other one');

  SKIP: {
        skip 'no Redis here', 12 if !Redis->programs;

        my $redis = Redis->new;
        my @pods = map {
            start($shared, '127.0.0.1:8000' => undef, '8000' => '127.0.0.1:$TEST_NGINX_PORT',
                  'redis:6379' => '127.0.0.1:' . $redis->port)
        } 1, 2;

        is($post->($pods[0], 'shared')->{status}, 200, 'a Redis: a request at one pod');
        ok(until_true { $post->($pods[1], 'shared')->replayed }, '... its retry at the other');
        is(executions('shared'), 1, '... is not executed');

        my $first = $pods[0]->start('POST', '/orders?id=slow&gate=1', key => 'slow', host => 'shop.example');

        held('slow');
        my $second = $pods[1]->start('POST', '/orders?id=slow&gate=1', key => 'slow', host => 'shop.example');
        go('slow');
        same_replay($first->response, $second->response, '... and one in between waits');
        is(executions('slow'), 1, '... for that one');
        $_->stop for @pods;
    }
}


# --- helpers -----------------------------------------------------------------

# start(TEXT, %place): nginx with that configuration in its http block

sub restarts {
    my ($text) = @_;

    SKIP: {
        my $why = no_state();
        skip("no file: $why", 1) if $why;

        my %place = ('127.0.0.1:8000' => '127.0.0.1:$TEST_NGINX_PORT',
                     '127.0.0.1:8001' => '$TEST_NGINX_BACKEND',
                     '/var/lib/nginx/idempotency' => '$TEST_NGINX_ROOT');

        my $n = outliving(zone => 0, workers => 2, allow => qr/exited on signal/,
                          http => place($text, %place));

        my $first = $n->post('/pay?id=paid', key => 'paid', body => 'a=1');
        is($first->{status}, 200, 'a payment');
        is($n->post('/pay')->{status}, 400, 'without a key it is none');

        for my $signal (qw(QUIT KILL)) {
            $n->restart($signal);
            same_replay($first, $n->post('/pay?id=paid', key => 'paid', body => 'a=1'),
                        "$signal: its retry is replayed");
        }

        is(executions('paid'), 1, 'it was executed once');

        # to move it, nginx is stopped

        $n->down('QUIT');
        my ($from, $to) = map $n->root . "/$_.db", 'payments', 'moved';
        ok(!-e "$from-wal", 'after a clean stop the file is all there is');
        rename $from, $to or die "$from: $!";
        $place{'/var/lib/nginx/idempotency/payments.db'} = '$TEST_NGINX_ROOT/moved.db';
        delete $place{'/var/lib/nginx/idempotency'};
        $n->up(http => place($text, %place));
        same_replay($first, $n->post('/pay?id=paid', key => 'paid', body => 'a=1'),
                    'a file that was moved is what it was');

        my $c = $n->start('POST', '/pay?id=killed&gate=1', key => 'killed', body => 'a=1');
        held('killed');
        $n->restart('KILL');
        go('killed');
        like($n->post('/pay?id=killed&gate=1', key => 'killed', body => 'a=1')->{body},
             qr/in_doubt/, 'one that was killed with nginx is in doubt');
        is(executions('killed'), 1, 'and not executed again');
        $c->close;
        $n->stop;
    }
}


sub start {
    my ($text, %place) = @_;

    %place = ('127.0.0.1:8000' => '127.0.0.1:$TEST_NGINX_PORT',
              '127.0.0.1:8001' => '$TEST_NGINX_BACKEND', %place);
    delete @place{grep { !defined $place{$_} } keys %place};

    my %o = (zone => 0, http => place($text, %place)
                                . ($text =~ m{/verify} ? $verify : ''));
    my ($ok, $said) = config_test(%o);

    ok($ok, 'nginx -t') or diag($said);
    unlike($said, qr/\[(?:warn|error|crit|emerg)\]/, '... with nothing to say') or diag($said);

    return nginx(%o);
}


# uuid7(AGE): a key that was made so many seconds ago

my $made = 0;

sub uuid7 {
    my ($age) = @_;

    my $time = sprintf '%012x', (time - $age) * 1000;

    return sprintf '%s-%s-7000-8000-%012x', substr($time, 0, 8), substr($time, 8), ++$made;
}
