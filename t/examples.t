#!/usr/bin/perl

# examples/: each file starts as it is, and does what it says.
#
# Their ports are fixed, so somebody else may have them just now; an example then
# runs from a copy with other ports and is otherwise the same.

use strict;
use warnings;

use Cwd qw(abs_path);
use File::Basename qw(basename dirname);
use File::Spec;
use File::Temp ();
use lib 't/lib';

use Commands qw(slurp spew until_true free_port);
use HTTP::Tiny;
use IO::Socket::INET;
use JSON::PP qw(decode_json);
use Resp;
use Test::More;

my $root = dirname(dirname(abs_path(__FILE__)));
my $nginx = $ENV{TEST_NGINX_BINARY} || 'nginx';
my $module = File::Spec->rel2abs(
                 $ENV{IDEMPOTENCY_MODULE}
                 || ($ENV{BUILD_DIR} || "$root/build")
                    . '/ngx_http_idempotency_module.so');
my $http = HTTP::Tiny->new(timeout => 120, max_redirect => 0);
my ($url, $prefix, $pid, $php, $redis, %port);

$ENV{PATH} .= ':/usr/sbin';
$SIG{$_} = sub { exit 1 } for qw(INT TERM HUP);

my %check = (
    'payments-api'       => \&payments_api,
    'ietf-draft'         => \&ietf_draft,
    'multi-tenant'       => \&multi_tenant,
    'observability'      => \&observability,
    'redis'              => \&redis,
    'legacy-form'        => \&legacy_form,

    # with what is behind them: wordpress.t, woocommerce.t
    'wordpress-comments' => \&wordpress_comments,
    'woocommerce-checkout' => sub { sub { } },
);

my @examples = map { basename($_, '.conf') } glob "$root/examples/*.conf";

is_deeply(\@examples, [sort keys %check], 'every example is tested');

for my $name (@examples) {
    subtest $name => sub {
        my $file = "$root/examples/$name.conf";

        prefix();

        my $said = command($file, '-t');

        is($?, 0, 'nginx -t') or diag($said);

        # what only root can do, PHP's user
        $said =~ s/.*"user" directive makes sense only.*\n// if $>;
        unlike($said, qr/\[(?:warn|error|crit|emerg)\]/, 'with nothing to say')
            or diag($said);

        start($name, $file) or return fail('it starts');
        my $in_the_end = $check{$name}->($name, $file);
        stop($name);
        $in_the_end->();
    };
}

# The quota that stands in each of them: here there is room for one token.

for my $name ('payments-api', 'multi-tenant') {
    subtest "$name, the quota" => sub {
        prefix();

        my $file = "$prefix/quota.conf";
        my @me = (authorization => 'Bearer me', 'x-api-key' => 'anna-1');
        my $uri = $name eq 'payments-api' ? '/v1/payments' : '/orders';

        spew($file, slurp("$root/examples/$name.conf") =~ s/(idempotency_quota) \d+/$1 1/r);
        start($name, $file) or return fail('it starts');

        my $first = post($uri, '{}', @me, 'idempotency-key' => '1');

        is_answer($first, 201, 'the first');
        is_refused(post($uri, '{}', @me, 'idempotency-key' => '2'), 429, 'one more');
        is_replay(post($uri, '{}', @me, 'idempotency-key' => '1'), $first, 'the first again');
        is_answer(post($uri, '{}', 'x-api-key' => 'carl-1', 'idempotency-key' => '2'), 201, 'another tenant')
            if $name eq 'multi-tenant';

        stop($name);
    };
}

done_testing();


# --- what the examples say that they do --------------------------------------
#
# Each returns what is to be looked at in the logs, once they are complete.

sub payments_api {
    my ($name, $file) = @_;

    my %me = (authorization => 'Bearer me', 'content-type' => 'application/json');
    my %rent = (%me, 'idempotency-key' => 'rent');

    my $paid = post('/v1/payments', '{"amount":800}', %rent);
    my ($first, $second) = ($paid, post('/v1/payments', '{"amount":800}', %rent));

    is_answer($first, 201, 'a payment');
    is_replay($second, $first, 'its retry');
    ok($first->{headers}{'x-request-id'}, 'the request id is passed on');
    is($second->{headers}{'x-request-id'}, undef, 'but not replayed');

    is_refused(post('/v1/payments', '{"amount":800}', %me), 400, 'no key');
    is_refused(post('/v1/payments', '{"amount":900}', %rent), 409, 'another amount');
    is_refused(post('/v1/payments', '{"amount":800}', %rent,
                    authorization => 'Bearer you'), 409, 'somebody else');

    my $page = 'https://payments.example/docs/idempotency';
    my $refused = post('/v1/payments', '{"amount":900}', %rent);

    is($refused->{headers}{link}, "<$page>; rel=\"describedby\"", 'a refusal has a Link');
    like($refused->{content}, qr/"type":\s*"\Q$page\E/, 'and is of a documented type');

    my %long = (%me, 'idempotency-key' => 'k' x 255);

    is_answer(post('/v1/payments', '{}', %long), 201, 'a key of 255 characters');
    $long{'idempotency-key'} .= 'k';
    is_refused(post('/v1/payments', '{}', %long), 400, 'a key of 256 characters');

    my %declined = (%me, 'idempotency-key' => 'declined');

    $first = post('/v1/payments/declined', '{}', %declined);
    is_answer($first, 402, 'a declined card');
    is_replay(post('/v1/payments/declined', '{}', %declined), $first, 'its retry');

    my %invalid = (%me, 'idempotency-key' => 'invalid');

    $first = post('/v1/payments/invalid', '{}', %invalid);
    $second = post('/v1/payments/invalid', '{}', %invalid);
    is_answer($_, 422, 'an invalid request is executed') for $first, $second;
    isnt($second->{content}, $first->{content}, 'each time');

    my %gone = (%me, 'idempotency-key' => 'gone');

    is_answer(request(DELETE => '/v1/payments', undef, %gone), 201, 'DELETE');
    is(request(DELETE => '/v1/payments', undef, %gone)->{headers}{'idempotent-replayed'},
       'true', 'is protected as well');
    is_answer(request(GET => '/v1/payments', undef, %me), 201, 'GET needs no key');

    stop($name);
    start($name, $file) or return sub { fail('it starts once more') };

    is_replay(post('/v1/payments', '{"amount":800}', %rent), $paid,
              'a retry after a restart');
    is_refused(post('/v1/payments', '{"amount":900}', %rent), 409, 'another amount then');
    is((stat "$prefix/state/payments.db")[2] & 07777, 0600, 'the file is for nobody else');

    return sub {
        is(executed('payments-api', 'POST /v1/payments'), 2, 'two payments were executed');
        is(executed('payments-api', 'DELETE /v1/payments'), 1, 'one was deleted');
        is(executed('payments-api', 'POST /v1/payments/declined'), 1, 'one was declined');

        my $log = slurp("$prefix/payments-api.access.log");

        for my $status (qw(NEW REPLAYED CONFLICT MISSING MALFORMED)) {
            like($log, qr/ idempotency=$status /, "the log names $status");
        }

        like($log, qr/" 201 upstream=- idempotency=REPLAYED age=\d+ token=[0-9a-f]+$/m,
             'and shows that a replay asked nobody');
    };
}


sub redis {
    my ($name, $file) = @_;

    my @key = ('idempotency-key' => 'o1');
    my $first = post('/orders', '{"item":"book"}', @key);

    is_answer($first, 201, 'an order');
    is_replay(post('/orders', '{"item":"book"}', @key), $first, 'its retry');

    # a second nginx beside it, at another port

    my ($one, $other) = ($url, free_port());
    (my $text = slurp($file)) =~ s/127\.0\.0\.1:(\d+)/'127.0.0.1:' . ($1 == 8480 ? $other : $port{$1} \/\/ $1)/ge;
    my $dir = File::Temp->newdir('idempotency-example-XXXXXX', TMPDIR => 1);

    chmod 0755, $dir;
    mkdir "$dir/modules";
    symlink $module, "$dir/modules/ngx_http_idempotency_module.so";
    $text =~ s/\n    # The stand-in for your application.*/\n}\n/s;
    spew("$dir/nginx.conf", $text);

    my @command = ($nginx, '-p', "$dir/", '-c', "$dir/nginx.conf");

    is(system(@command), 0, 'a second nginx');
    $url = "http://127.0.0.1:$other";
    is_replay(post('/orders', '{"item":"book"}', @key), $first, 'the retry at it');
    is_refused(post('/orders', '{"item":"pen"}', @key), 409, 'another order with that key');
    $url = $one;

    my $other_pid = 0 + slurp("$dir/redis.pid");
    kill QUIT => $other_pid;
    ok(until_true { !is_running($other_pid) }, 'it stops');

    return sub {
        is(executed('redis', 'POST /orders'), 1, 'one order was executed');
        undef $redis;
    };
}


sub ietf_draft {
    my @key = ('idempotency-key' => '"8e03978e-40d5-43dd-bc93-6894a57f9324"');

    my $first = post('/things', 'a=1', @key);

    is_answer($first, 201, 'a request');
    is_replay(post('/things', 'a=1', @key), $first, 'its retry');

    is_refused(post('/things', 'a=2', @key), 422, 'another request');
    is_refused(post('/things', 'a=1'), 400, 'no key');
    is_refused(post('/things', 'a=1', 'idempotency-key' => 'bare'), 400, 'no quotes');
    is_refused(post('/things', 'a=1', 'idempotency-key' => '"open'), 400, 'one quote');

    is(post('/things', 'a=1')->{headers}{link},
       '<https://api.example/idempotency>; rel="describedby"', 'a refusal has a Link');

    my @slow = ('idempotency-key' => '"slow"');
    my @pair = sort { $a->{status} <=> $b->{status} } at_once('/slow', 'a=1', @slow);

    is_answer($pair[0], 201, 'two at once: one is executed');
    is_refused($pair[1], 409, 'two at once: the other');
    like($pair[1]{headers}{'retry-after'}, qr/^[1-9]\d*$/, 'and may come back');
    is_replay(post('/slow', 'a=1', @slow), $pair[0], 'when it does');

    return sub {
        is(executed('ietf-draft', 'POST /things'), 1, 'the request was executed once');
        is(executed('ietf-draft', 'POST /slow'), 1, 'and so was the slow one');
    };
}


sub multi_tenant {
    my @one = ('idempotency-key' => '1');

    my $anna = post('/orders', 'item=book', @one, 'x-api-key' => 'anna-1');

    is_answer($anna, 201, "Anna's order");
    like($anna->{content}, qr/"tenant":"acme","user":"anna"/, 'the application knows her');

    is_replay(post('/orders', 'item=book', @one, 'x-api-key' => 'anna-1'), $anna,
              'her retry');
    is_replay(post('/orders', 'item=book', @one, 'x-api-key' => 'anna-2'), $anna,
              'her retry with another API key');
    is_refused(post('/orders', 'item=book', @one, 'x-api-key' => 'ben-1'), 409,
               'her colleague');

    my $carl = post('/orders', 'item=book', @one, 'x-api-key' => 'carl-1');

    is_answer($carl, 201, 'the same key of another tenant');
    like($carl->{content}, qr/"tenant":"globex","user":"carl"/, 'is another order');

    for my $key ([], ['x-api-key' => 'anna-3']) {
        my $stranger = post('/orders', 'item=book', @one, @$key);

        is($stranger->{status}, 401, 'a stranger gets 401');
        unlike($stranger->{content}, qr/acme/, 'and no replay');
    }

    # a key that a stranger used first is none the worse for it
    my @two = ('idempotency-key' => '2');

    is(post('/orders', 'item=mug', @two)->{status}, 401, 'a stranger has a key first');
    is_answer(post('/orders', 'item=mug', @two, 'x-api-key' => 'anna-1'), 201,
              'Anna can use it');

    return sub {
        is(executed('multi-tenant', 'POST /orders'), 3, 'three orders were executed');
    };
}


sub observability {
    my %order = ('idempotency-key' => 'one', authorization => 'Bearer me');

    my $first = post('/orders', 'item=book', %order);

    is_answer($first, 201, 'an order');
    is_replay(post('/orders', 'item=book', %order), $first, 'its retry');
    is_refused(post('/orders', 'item=mug', %order), 409, 'another one with its key');
    like(request(GET => '/orders/outcome', undef, %order)->{content},
         qr/"outcome":"done".*"status":201/, 'what became of it, for its client');
    is(request(GET => '/orders/outcome', undef, %order, authorization => 'Bearer you')->{status},
       404, 'but for nobody else');
    is_answer(post('/carts', $_, 'idempotency-key' => 'cart'), 201, 'a dry run: executed')
        for 'item=book', 'item=book', 'item=mug';
    is_answer(post('/carts', 'item=book'), 201, 'a dry run: without a key, too');
    is(post('/', 'a=b')->{status}, 201, 'where nothing is protected');

    # for operators
    my ($shop, $operators) = ($url, "http://127.0.0.1:$port{8471}/idempotency");

    my $zone = decode_json($http->get("$operators/zones/shop")->{content});

    is(join(' ', map { "$_ $zone->{requests}{$_}" } qw(new replayed conflict missing)),
       'new 1 replayed 1 conflict 1 missing 0', 'what was done');
    is(join(' ', map { "$_ $zone->{dry_run}{$_}" } qw(new replayed conflict missing)),
       'new 1 replayed 1 conflict 1 missing 1', 'and what would have been');
    like($http->get("$operators/")->{content}, qr/<title>Idempotency</, 'the page');
    like($http->get("$operators/metrics")->{content},
         qr/^nginx_idempotency_requests_total\{zone="shop",result="conflict"\} 1$/m, 'for Prometheus');
    is($http->get("$shop/idempotency/zones")->{status}, 201, 'in the shop there is no such thing');

    my $stranger = IO::Socket::INET->new(PeerAddr => '127.0.0.1', PeerPort => $port{8471},
                                         LocalAddr => '127.0.0.2') or die $!;
    print $stranger "GET /idempotency/zones HTTP/1.0\r\n\r\n";
    like(scalar <$stranger>, qr/ 403 /, 'nor for others');

    return sub {
        is(executed('observability', 'POST /orders'), 1, 'one order was executed');
        is(executed('observability', 'POST /carts'), 4, 'a dry run executes all');

        my $log = slurp("$prefix/observability.access.log");
        my ($token) = $log =~ /idempotency=NEW .* token=([0-9a-f]{64})$/m;

        like($log, qr/" 409 .* idempotency=CONFLICT reason=body .*fence=\d+ token=$token$/m,
             'the log tells why');
        like($log, qr/" 201 .* idempotency=\Q$_\E_DRY_RUN /, "and names $_ in a dry run")
            for qw(NEW REPLAYED CONFLICT MISSING);

        my $errors = slurp("$prefix/observability.error.log");

        like($errors, qr/refused with status 409, conflict, reason: body, token: $token/, 'so do the notices');
        unlike($errors, qr/idempotency (?:claim|outcome)/, 'without the trail');
        like(slurp("$prefix/observability.trail.log"),
             qr/idempotency claim, token: $token, .*\n(?:.*\n)*.*idempotency outcome done, status 201, token: $token/,
             'which has a file of its own');
    };
}


sub legacy_form {
    mkdir "$prefix/legacy-form";
    system 'cp', "$root/examples/legacy-form/index.php", "$prefix/legacy-form/index.php";
    start_php("127.0.0.1:$port{8443}");

    # as a browser sends a form
    my @form = ('content-type' => 'application/x-www-form-urlencoded',
                accept => 'application/json, text/html;q=0.9');
    my $ann = 'name=Ann&seats=2&note=by+the+window';

    # as it was
    $url = "http://127.0.0.1:$port{8442}";
    is(post('/', $ann, @form)->{headers}{location}, "?booking=$_", "unprotected: booking $_")
        for 1, 2;

    # by its content
    $url = "http://127.0.0.1:$port{8441}";

    my $first = post('/', $ann, @form);

    is_answer($first, 303, 'protected: a form');
    is_replay(post('/', $ann, @form), $first, 'protected: again');
    is_replay(post('/', 'note=+by+the%20+window&seats=2&name=Ann', @form), $first,
              'protected: again, though not the same bytes');
    is_answer(post('/', 'name=Ben&seats=2&note=by+the+window', @form), 303,
              'protected: another one');
    is_answer(post('/', $ann, @form, cookie => 'visitor=2'), 303, 'protected: another visitor');
    is_replay(post('/', $ann, @form, cookie => '_ga_1=2; visitor=2'),
              post('/', $ann, @form, cookie => 'visitor=2'),
              'protected: the same, whatever else there is');
    like(request(GET => '/')->{headers}{'set-cookie'},
         qr/^visitor=\w{32}; Path=\/; HttpOnly; SameSite=Lax$/, 'protected: a page makes one');

    # by the guard's token
    $url = "http://127.0.0.1:$port{8440}";

    my $page = request(GET => '/')->{content};
    my ($script) = $page =~ m{<script src="([^"]+)"></script></head>};

    is(request(GET => $script)->{status}, 200, 'guarded: the script of the page is there');
    unlike(slurp("$root/examples/legacy-form/index.php"), qr/<script/,
           'guarded: which the application does not know');

    $first = post('/', "$ann&submission_token=1", @form);

    is_answer($first, 303, 'guarded: a form');
    is_replay(post('/', "$ann&submission_token=1", @form), $first, 'guarded: again');
    is_refused(post('/', "$ann+please&submission_token=1", @form), 409,
               'guarded: the token with something else');
    is_refused(post('/', "$ann&submission_token=2", @form), 409,
               'guarded: the same from another page view');
    like(request(GET => '/?booking=1')->{content}, qr/Thank you, Ann/, 'guarded: the answer');

    kill TERM => $php;
    waitpid $php, 0;
    $php = undef;

    return sub {
        my %bookings = (unprotected => 2, protected => 3, guarded => 1);

        for my $name (sort keys %bookings) {
            my $php = 'echo (new PDO("sqlite:$argv[1]"))->query("SELECT count(*) FROM bookings")'
                      . '->fetchColumn();';

            is(`php -r '$php' $prefix/$name.sqlite`, $bookings{$name}, "$name: bookings");
        }

        my $log = slurp("$prefix/legacy-form.access.log");

        for my $status (qw(NEW REPLAYED CONFLICT SIMILAR)) {
            like($log, qr/ idempotency=$status /, "the log names $status");
        }
    };
}


sub wordpress_comments {
    my $script = request(GET => '/idempotency-guard.js');

    is($script->{status}, 200, 'the guard is there');
    like($script->{content}, qr/submission_token/, 'and what it should be');

    return sub { };
}


# --- helpers -----------------------------------------------------------------

sub is_answer {
    my ($r, $status, $name) = @_;

    is($r->{status}, $status, "$name: $status") or diag($r->{content});
    is($r->{headers}{'idempotent-replayed'}, undef, "$name: executed");
}


sub is_replay {
    my ($r, $first, $name) = @_;

    is($r->{status}, $first->{status}, "$name: same status");
    is($r->{content}, $first->{content}, "$name: same body");
    is($r->{headers}{'content-type'}, $first->{headers}{'content-type'},
       "$name: same type");
    is($r->{headers}{'idempotent-replayed'}, 'true', "$name: replayed");
}


sub is_refused {
    my ($r, $status, $name) = @_;

    is($r->{status}, $status, "$name: refused with $status") or diag($r->{content});
    is($r->{headers}{'content-type'}, 'application/problem+json',
       "$name: problem+json");
}


sub post { return request(POST => @_) }


sub request {
    my ($method, $uri, $body, @headers) = @_;

    return $http->request($method, "$url$uri",
                          { headers => { @headers },
                            defined $body ? (content => $body) : () });
}


# two requests, both sent before either answer is read
sub at_once {
    my ($uri, $body, %headers) = @_;

    my ($host) = $url =~ m{//(.*)};
    my $request = join "\r\n", "POST $uri HTTP/1.1", "Host: $host", 'Connection: close',
                       (map { "$_: $headers{$_}" } sort keys %headers),
                       'Content-Type: application/octet-stream',
                       'Content-Length: ' . length $body, '', $body;

    my @connections = map {
        my $c = IO::Socket::INET->new($host) or die "connect: $!";
        print $c $request;
        $c->flush;
        $c;
    } 1 .. 2;

    return map {
        my ($head, $content) = split /\r\n\r\n/, do { local $/; readline $_ }, 2;
        my ($line, @lines) = split /\r\n/, $head;

        { status => (split ' ', $line)[1], content => $content,
          headers => { map { /^([^:]+): (.*)/ ? (lc $1, $2) : () } @lines } };
    } @connections;
}


# executed(NAME, WHAT): how often the stand-in got that
sub executed {
    my ($name, $what) = @_;

    return scalar(() = slurp("$prefix/$name.executed.log") =~ /"\Q$what\E HTTP/g);
}


# --- nginx -------------------------------------------------------------------

sub command {
    my ($file, @args) = @_;

    return scalar `'$nginx' -p '$prefix' -e error.log -c '$file' @args 2>&1`;
}


# whom nginx makes its workers of, if root starts it

sub workers {
    return `'$nginx' -V 2>&1` =~ /--user=(\S+)/ ? $1 : 'nobody';
}


# start(NAME, FILE): as it is; with other ports if its own are taken
sub prefix {
    $prefix = File::Temp->newdir('idempotency-example-XXXXXX', TMPDIR => 1);
    chmod 0755, $prefix;
    mkdir "$prefix/modules";
    mkdir "$prefix/state", 0700;
    chown scalar getpwnam(workers()), -1, "$prefix/state" if !$>;
    symlink $module, "$prefix/modules/ngx_http_idempotency_module.so";
}


sub start {
    my ($name, $file) = @_;

    my $text = slurp($file);
    my @ports = $text =~ /^\s*listen\s+127\.0\.0\.1:(\d+);/mg;
    my @behind = grep { my $port = $_; !grep { $_ == $port } @ports }
                 $text =~ /(?:_pass|server) 127\.0\.0\.1:(\d+);/g;
    my $said = '';

    for my $try (0 .. 5) {
        %port = map { $_ => $try == 0 ? $_ : free_port() } @ports, @behind;

        if ($try > 0) {
            $file = "$prefix/$name.conf";
            (my $copy = $text) =~ s/(127\.0\.0\.1):(\d+)/"$1:$port{$2}"/ge;
            spew($file, $copy);

            # the log so far is about the taken port
            unlink "$prefix/$name.error.log";
            note("a port of $name is taken: running a copy with other ports");
        }

        $url = "http://127.0.0.1:$port{$ports[0]}";

        # an application's port is nothing that nginx would complain about
        next if grep { !is_free($port{$_}) } @behind;

        $redis = Resp->start(program => (Resp::servers())[0],
                             args => [ '--port', $port{8482}, qw(--appendonly yes) ])
            if $name eq 'redis';

        # returns when the ports are bound
        $said = command($file);

        if ($? == 0) {
            until_true { -s "$prefix/$name.pid" };
            $pid = 0 + slurp("$prefix/$name.pid");
            return pass('it starts');
        }

        last if $said !~ /Address already in use/;
    }

    diag($said);
    return 0;
}


sub stop {
    my ($name) = @_;

    my $end = $pid;
    $pid = undef;
    kill QUIT => $end;
    ok(until_true { !is_running($end) }, 'it stops');

    # a port that somebody else had for a moment, which nginx tried again
    (my $log = slurp("$prefix/$name.error.log")) =~ s/.*bind\(\) to .* \(98: .*\n//g;

    # nginx's own, of who is not let in
    $log =~ s/.*\[error\] .* access forbidden by rule, .*\n//g;

    # of the first start

    $log =~ s/.*\[warn\].* the state file "\S+" was made, as there was none: .*\n//;

    unlike($log, qr/\[(?:warn|error|crit|alert|emerg)\]|Sanitizer/,
           'nothing bad in its error log')
        or diag($log);
}


# is_running(PID): not if it awaits its parent's notice, which may take long if
# that is the machine's first process
sub is_running {
    open my $file, '<', "/proc/$_[0]/stat" or return 0;

    return (<$file> // '') !~ /\) Z /;
}


END { kill TERM => $_ for grep { $_ } $pid, $php }


# start_php(ADDRESS)
sub start_php {
    my ($address) = @_;

    $php = fork // die $!;

    if ($php == 0) {
        open STDOUT, '>', "$prefix/php.out";
        open STDERR, '>&', \*STDOUT;
        $ENV{PHP_FCGI_CHILDREN} = 2;
        exec 'php-cgi', '-b', $address or die "php-cgi: $!";
    }

    ok(until_true { IO::Socket::INET->new($address) }, 'PHP starts');
}


sub is_free {
    return IO::Socket::INET->new(Listen => 1, LocalAddr => "127.0.0.1:$_[0]", ReuseAddr => 1);
}
