# SPEC, "Words" (fingerprint), idempotency_bind and $idempotency_reason: what
# belongs to the action, and why a conflict is one.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::Bin/lib";
use Idempotency;


my %conf = (http => <<'EOC', server => <<'EOC');
    add_header X-Status $idempotency_status always;
    add_header X-Reason "[$idempotency_reason]" always;
    add_header X-Token $idempotency_token always;

    idempotency zone=z;
    idempotency_bind $http_x_version;

    map $arg_lang $lang {
        default $arg_lang;
        ""      none;
    }

    server {
        listen 127.0.0.1:$TEST_NGINX_PORT;
        server_name two;

        idempotency_bind $http_x_a $http_x_b;
        idempotency_bind $http_x_c;

        location / { proxy_pass http://$TEST_NGINX_BACKEND; }
    }

    server {
        listen 127.0.0.1:$TEST_NGINX_PORT;
        listen 127.0.0.1:$TEST_NGINX_RAND_PORT_1 http2;
        server_name h2.example;

        location / { proxy_pass http://$TEST_NGINX_BACKEND; }
    }
EOC
    location / { proxy_pass http://$TEST_NGINX_BACKEND; }

    location /own {
        idempotency_bind "$http_accept;$lang" ;
        proxy_pass http://$TEST_NGINX_BACKEND;

        location /own/below { proxy_pass http://$TEST_NGINX_BACKEND; }
    }

    location /field {
        idempotency_bind $idempotency_field_to;
        idempotency_ignore_fields to note;
        proxy_pass http://$TEST_NGINX_BACKEND;
    }

    location /reject {
        idempotency_in_progress reject;
        proxy_pass http://$TEST_NGINX_BACKEND;
    }

    location /dry {
        idempotency_dry_run on;
        proxy_pass http://$TEST_NGINX_BACKEND;
    }

    location /missing {
        idempotency_missing_key reject;
        proxy_pass http://$TEST_NGINX_BACKEND;
    }

    location /content {
        idempotency_missing_key content;
        proxy_pass http://$TEST_NGINX_BACKEND;
    }

    location /similar {
        idempotency_similar reject;
        proxy_pass http://$TEST_NGINX_BACKEND;
    }
EOC

my $n = nginx(%conf);

my $form = 'application/x-www-form-urlencoded';
my $id = 'bind0';

sub told {
    my ($r) = @_;

    my ($reason) = ($r->header('X-Reason') // '') =~ /\[(.*)\]/;

    return "$r->{status} " . ($r->header('X-Status') // '-')
           . (length($reason // '') ? " $reason" : '');
}

sub asked {
    my ($path, @requests) = @_;

    $id++;

    return join ', ', map {
        my %o = (key => 'k' . $id, body => 'a=1', type => $form, @$_);
        my $method = delete $o{method} // 'POST';
        my $query = delete $o{query} // '';

        told($n->request($method, "$path?id=$id$query", %o));
    } @requests;
}

sub with { return [ headers => [ @_ ] ] }


# --- idempotency_bind --------------------------------------------------------

is(asked('/', with('X-Version: 1'), with('X-Version: 1'), with('X-Version: 2'),
         with()),
   '200 NEW, 200 REPLAYED, 409 CONFLICT action, 409 CONFLICT action',
   'a value that belongs to the action');
is(asked('/', with(), with(), with('X-Version: 1'), with('X-Other: 1')),
   '200 NEW, 200 REPLAYED, 409 CONFLICT action, 200 REPLAYED',
   '... also where it is empty');

is(asked('/', [ host => 'two', @{with('X-A: 1', 'X-B: 2', 'X-C: 3')} ],
         map { [ host => 'two', @{with(@$_)} ] }
             [ 'X-A: 1', 'X-B: 2', 'X-C: 3' ], [ 'X-A: 1', 'X-B: 2' ],
             [ 'X-A: 12', 'X-C: 3' ], [ 'X-A: 2', 'X-B: 1', 'X-C: 3' ],
             [ 'X-A: 1', 'X-B: 2', 'X-C: 3', 'X-Version: 9' ]),
   '200 NEW, 200 REPLAYED, 409 CONFLICT action, 409 CONFLICT action, '
   . '409 CONFLICT action, 200 REPLAYED',
   'several of them, which do not run together; those of http are replaced');

for my $path ('/own', '/own/below') {
    is(asked($path, with('Accept: a'), with('Accept: a', 'X-Version: 2'),
             with('Accept: b')),
       '200 NEW, 200 REPLAYED, 409 CONFLICT action', "a string: $path");
}

is(asked('/field', [ body => 'to=a&note=1' ], [ body => 'note=2&to=a' ],
         [ body => 'to=b&note=1' ]),
   '200 NEW, 200 REPLAYED, 409 CONFLICT action', 'a field of the body');

is(asked('/content', map { [ key => undef, @{with(@$_)} ] }
                         ['X-Version: 1'], ['X-Version: 2'], ['X-Version: 1']),
   '200 NEW, 200 NEW, 200 REPLAYED', 'it is part of a token of content');
{
    $id++;
    my @r = map { $n->post("/?id=$id", key => $id, headers => $_) }
            ['X-Version: 1'], ['X-Version: 2'];
    is($r[1]->header('X-Token'), $r[0]->header('X-Token'),
       '... and not of one by key');
}


# --- $idempotency_reason -----------------------------------------------------

my @alice = (headers => [ 'Cookie: s=alice' ]);
my @bob = (headers => [ 'Cookie: s=bob' ]);

my %differs = (action => [ method => 'PATCH' ], identity => [ @bob ],
               body => [ body => 'a=2' ]);

for my $parts ([ 'action' ], [ 'identity' ], [ 'body' ],
               [ 'action', 'identity' ], [ 'action', 'body' ],
               [ 'identity', 'body' ], [ 'action', 'identity', 'body' ])
{
    my $reason = join ',', @$parts;

    is(asked('/', [ @alice ], [ @alice, map { @{$differs{$_}} } @$parts ]),
       "200 NEW, 409 CONFLICT $reason", "why: $reason");
}

is(asked('/', [ @alice ], [ @alice, @$_ ]), '200 NEW, 409 CONFLICT action',
   "action: $_->[0]") for [ method => 'PATCH' ], [ query => '&x=1' ];
is(asked('/', [ host => 'two', @alice ], [ host => 'elsewhere', @alice ]),
   '200 NEW, 409 CONFLICT action', 'action: the host');
is(asked('/', [ @alice ], [ @alice, type => 'text/plain' ]),
   '200 NEW, 409 CONFLICT body', 'body: its type');

is(asked('/dry', [ @alice ], [ @bob ]),
   '200 NEW_DRY_RUN, 200 CONFLICT_DRY_RUN identity', 'why: in a dry run');
is(asked('/missing', [ key => undef ]), '400 MISSING', 'nothing else has a why');
is(asked('/similar', [ key => "a$$" ], [ key => "b$$" ]),
   '200 NEW, 409 SIMILAR', '... nor what is similar');

{
    $id++;
    my $c = $n->start(POST => "/reject?id=$id&gate=1", key => $id,
                      body => 'b', @alice);
    held($id);
    is(told($n->post("/reject?id=$id&gate=1", key => $id, body => 'c', @alice)),
       '409 CONFLICT body', 'why: while it is pending');
    is(told($n->post("/reject?id=$id&gate=1", key => $id, body => 'b', @alice)),
       '409 IN_PROGRESS', '... but not of a repeat');
    go($id);
    is(told($c->response), '200 NEW', '... nor of the owner');
}

# In the log, and in the answer to who may know.
{
    $id++;
    my @o = (key => $id, body => 'a=1', type => $form);
    $n->post("/?id=$id", @o, @alice);

    my $from = length $n->log;
    my $r = $n->post("/?id=$id", @o, @alice, body => 'a=2', method => 'PATCH');
    my ($line) = grep /refused with status 409/,
                 split /\n/, substr $n->log, $from;
    like($line // '', qr/conflict, reason: body, token: [0-9a-f]{64}, zone: "z"/,
         'the reason is in the log');
    like($r->{body}, qr/"detail":"[^"]* What differs: body\."/,
         '... and in the problem document');

    $r = $n->post("/?id=$id", @o, @bob, body => 'a=2');
    unlike($r->{body}, qr/differs/,
           '... but a stranger learns nothing of what he has met');

    $r = $n->post("/?id=$id", @o, @alice, body => 'a=2',
                  headers => [ 'Cookie: s=alice', 'Accept: text/html' ]);
    unlike($r->{body}, qr/differs/, '... nor is it in a page for people');
}


# --- settings ----------------------------------------------------------------

# After a reload a conflict may come of settings that make another fingerprint
# of the same request: it says so.
{
    my %was = (http => <<'EOC');
        add_header X-Status $idempotency_status always;
        add_header X-Reason "[$idempotency_reason]" always;

        map $http_x_who $who { default $http_x_who; }
EOC

    my $server = sub {
        my ($lines) = @_;

        return <<"EOC" . <<'EOC';
            idempotency zone=z;
            $lines
EOC
            location / { proxy_pass http://$TEST_NGINX_BACKEND; }
EOC
    };

    my $m = nginx(%was, server => $server->(''));

    my $ask = sub {
        my ($id, %o) = @_;

        return told($m->post("/?id=$id", key => $id, type => $form,
                             headers => [ 'Cookie: s=1', 'X-Who: me' ],
                             body => 'a=1', %o));
    };

    my $i = 0;

    for my $case (
        [ '', 'body', 'the same' ],
        [ 'idempotency_normalize off;', 'body,settings', 'idempotency_normalize',
          '409 CONFLICT body,settings' ],
        [ 'idempotency_normalize_buffer 2m;', 'body,settings',
          'idempotency_normalize_buffer' ],
        [ 'idempotency_ignore_fields x;', 'body,settings',
          'idempotency_ignore_fields' ],
        [ 'idempotency_ignore_cookies x;', 'body,settings',
          'idempotency_ignore_cookies' ],
        [ 'idempotency_ignore_cookies off;', 'body,settings',
          'idempotency_ignore_cookies off' ],
        [ 'idempotency_identity $who;', 'identity,body,settings',
          'idempotency_identity', '409 CONFLICT identity,settings' ],
        [ 'idempotency_bind $http_x_no;', 'action,body,settings',
          'idempotency_bind', '409 CONFLICT action,settings' ],
        [ 'idempotency_window 1h; idempotency_lease 2m; '
          . 'idempotency_max_response 1k; idempotency_log_level warn;'
          . 'idempotency_methods POST PUT;', 'body',
          'settings that make no fingerprints' ])
    {
        my ($lines, $reason, $name, $again) = @$case;

        $i++;
        is($ask->("r$i"), '200 NEW', "bound: $name");
        ok($m->reload(%was, server => $server->($lines)), '... a reload');
        is($ask->("r$i", body => 'a=2'), "409 CONFLICT $reason",
           '... another body: why');

        $again //= '200 REPLAYED';
        is($ask->("r$i"), $again, '... the same request');

        $m->reload(%was, server => $server->(''));
    }

    # one value more or less, or in another directive, is another setting
    is($ask->('s1'), '200 NEW', 'bound without settings');

    my @sets = ('idempotency_ignore_fields a b;', 'idempotency_ignore_fields ab;',
                'idempotency_ignore_fields a; idempotency_bind $http_b;',
                'idempotency_bind $http_a$http_b;',
                'idempotency_bind $http_a $http_b;');

    for my $i (0 .. $#sets) {
        $m->reload(%was, server => $server->($sets[$i]));
        is($ask->("set$i"), '200 NEW', "bound with $sets[$i]");
        is($ask->("set$i", body => 'a=2') =~ /settings/ ? 1 : 0, 0,
           '... the same settings');
        is($ask->("set$_", body => 'a=2') =~ /settings/ ? 1 : 0, 1,
           "... other ones than $sets[$_]") for 0 .. $i - 1;
    }

    is($ask->('s1', body => 'a=2') =~ /settings/ ? 1 : 0, 1,
       '... other ones than none');

    # the same configuration is the same
    $m->reload(%was, server => $server->(''));
    is($ask->('s1', body => 'a=2'), '409 CONFLICT body',
       'the same settings again');
}


# --- the same request over HTTP/1.1 and 2 -------------------------------------

{
    my @version = (undef, '--http2-prior-knowledge');
    my $ask = sub {
        my ($version, $method, $host, $path, @args) = @_;

        my $port = $n->port($version ? 1 : 0);

        return told($n->curl($version ? $version[1] : '--http1.1',
                             '-X', $method, '-d', 'b', '-H', "Host: $host",
                             '-H', "Idempotency-Key: $id",
                             '-H', 'Content-Type: text/plain', @args,
                             "http://127.0.0.1:$port$path?id=$id"));
    };

    for my $first (0, 1) {
        $id++;
        is(join(', ', map { $ask->($_, 'POST', 'h2.example', '/v',
                                   '-H', 'Cookie: a=1; b=2') }
                      $first, 1 - $first),
           '200 NEW, 200 REPLAYED',
           'HTTP/' . ($first ? '2, then 1.1' : '1.1, then 2'));
        is($ask->(1 - $first, 'POST', 'h2.example', '/v',
                  '-H', 'Cookie: a=2; b=2'),
           '409 CONFLICT identity', '... another cookie');
    }

    # the host as it is meant: its case, its port and a dot at its end are none
    $id++;
    is(join(', ', map { $ask->(0, 'POST', $_, '/h') }
                  'h2.example', 'H2.Example', 'h2.example:80', 'h2.example.',
                  'h2.example:8080'),
       '200 NEW' . ', 200 REPLAYED' x 4, 'one host');
    is($ask->(1, 'POST', 'H2.EXAMPLE:443', '/h'), '200 REPLAYED',
       '... by HTTP/2');

    # an absolute URI names the host as well
    $id++;
    my @o = (host => 'h2.example', key => $id, body => 'b');
    is(told($n->post("/abs?id=$id", @o)), '200 NEW', 'a path and a host');
    is(told($n->post("http://h2.example/abs?id=$id", @o)), '200 REPLAYED',
       '... in an absolute URI');

    # what HTTP/1.0 may leave out
    $id++;
    is(told($n->post("/old?id=$id", version => '1.0', host => 'two',
                     key => $id)), '200 NEW', 'a host in HTTP/1.0');
    my $c = $n->connect;
    $c->send("POST /old?id=$id HTTP/1.0\r\nIdempotency-Key: $id\r\n"
             . "Content-Length: 0\r\n\r\n");
    is(told($c->response('POST')), '200 REPLAYED', '... and none');
}

done_testing();
