# docs/directives.md: where each directive may stand, each bad value with its one
# clear line, and what is in force where http, servers and locations differ.

use lib 't/lib';
use Test::Nginx::Idempotency 'no_plan';

# every directive with a good value
our %good = (
    idempotency => 'zone=z',
    idempotency_methods => 'POST PUT PATCH DELETE',
    idempotency_key => '$http_idempotency_key $arg_key "a$cookie_key"',
    idempotency_missing_key => 'reject',
    idempotency_key_format => 'uuid',
    idempotency_key_max_age => '1h',
    idempotency_key_max_length => '64',
    idempotency_scope => '$host$http_x_tenant',
    idempotency_identity => '$remote_user',
    idempotency_ignore_cookies => 'a b* *c d*e',
    idempotency_bind => '$http_stripe_version "$http_accept"',
    idempotency_normalize => 'form text',
    idempotency_normalize_buffer => '64k',
    idempotency_ignore_fields => 'csrf /a/b~1c/0',
    idempotency_window => '1h',
    idempotency_content_window => '5m',
    idempotency_similar => 'warn',
    idempotency_in_progress => 'reject',
    idempotency_wait_timeout => '5s',
    idempotency_lease => '2m',
    idempotency_in_doubt => 'retry',
    idempotency_unavailable => 'pass',
    idempotency_keep => '2xx 404 500',
    idempotency_quota => '10 $http_x_user',
    idempotency_max_response => '64k',
    idempotency_hide_header => 'X-Secret Server',
    idempotency_replay_cookies => 'always',
    idempotency_replay_header => 'X-Replayed',
    idempotency_status => 'conflict=422 missing=428',
    idempotency_docs => 'https://example.com/docs',
    idempotency_bypass => '$arg_bypass $http_x_bypass',
    idempotency_dry_run => 'on',
    idempotency_log_level => 'warn',
);

our @names = sort keys %good;
our %repeatable = map { $_ => 1 } qw(idempotency_bind idempotency_bypass
                                    idempotency_hide_header
                                    idempotency_ignore_cookies
                                    idempotency_ignore_fields);
our $all = join '', map "$_ $good{$_};\n", @names;
our @choices = qw(idempotency_missing_key idempotency_key_format
                  idempotency_replay_cookies idempotency_log_level
                  idempotency_in_progress idempotency_in_doubt
                  idempotency_unavailable idempotency_similar);
our @times = qw(idempotency_window idempotency_content_window
                idempotency_wait_timeout idempotency_lease);
# what can never be a key, or is the same one for all
our @never = ('Idempotency-Key', '"a b"', '"a$idempotency_key"', '""', '${idempotency_key}', '$IDEMPOTENCY_KEY',
              map({ "\$idempotency_$_" } qw(key status token digest age replays
                  refusal detail reason expires fence)),
              '$idempotency_key$idempotency_token',
              '"${idempotency_key}$idempotency_digest"');
our $too_long = (~0 >> 1) . 'ms';    # the longest of which nginx takes for a time


# Filters. A configuration of each line, alone or in a location; what must be
# said is behind it.

sub alone { return [ split /\n/, $_[0] ] }

sub located { return [ map "location / {\n\n\n$_\n\n}", split /\n/, $_[0] ] }


sub misplaced {
    return map "$_ " . ($good{$_} // '') . ";"
               . "  # \"$_\" directive is not allowed here\n", @_;
}


# One configuration of all lines, each in a location.

sub together {
    my $n;
    return join "\n", 'location = /ok { return 204; }',
                      map { 'location /' . ++$n . " { $_ }" } split /\n/, $_[0];
}


# ... and the lines: all of these directives with all of these values.

sub table {
    my ($names, $values, $why) = @_;

    return join "\n", map { my $name = $_;
                            map "$name $_;" . ($why ? "  # $why" : ''), @$values
                          } ref $names ? @$names : $names;
}


add_block_preprocessor(sub {
    my ($block) = @_;

    my ($why) = join("\n", map { $block->$_ // '' }
                           qw(main_config http_config config)) =~ /  # (.*)/
        or return;
    $block->set_value(error_log => [ $why, qr{ in ROOT/nginx\.conf:\d+$} ]);
});


# The places that differ, what is in force in each, and requests to all of them.

our @places = (
    { host => 'localhost', uri => '/x', method => 'PUT', h => 'X', max => 8,
      keep => '2xx', kept => 200, released => 404, size => 2000, in => 'reject',
      on_missing => 'reject', missing => 428, cookies => 'never',
      conflict => 422, docs => 'http', level => 'warn' },
    { host => 'server', uri => '/x', method => 'POST', h => 'Y', max => 12,
      keep => 'any', kept => 404, size => 3000, conflict => 423,
      docs => 'server', level => 'error' },
    map +{ host => 'localhost', uri => $_, method => 'PATCH', h => 'Z',
           max => 16, keep => '5xx', kept => 500, released => 200, size => 4000,
           conflict => 424, docs => 'location', level => 'error' },
        '/own', '/own/below');

sub settings {
    my %p = (on_missing => 'pass', in => 'accepted', cookies => 'always',
             %{$places[$_[0]]});

    return <<"EOC";
idempotency_methods $p{method};
idempotency_key \$http_$p{h}_key;
idempotency_missing_key $p{on_missing};
idempotency_key_max_length $p{max};
idempotency_scope $p{docs};
idempotency_identity \$http_$p{h}_who;
idempotency_keep $p{keep};
idempotency_max_response $p{size};
idempotency_hide_header $p{h}-Hidden;
idempotency_replay_cookies $p{cookies};
idempotency_in_progress $p{in};
idempotency_status conflict=$p{conflict} missing=@{[ $p{missing} // 400 ]};
idempotency_docs https://$p{docs}.example/;
idempotency_bypass \$http_$p{h}_bypass;
idempotency_log_level $p{level};
EOC
}

our @bodies = (
    map({ { uri => $_, types => 'json', ignored => 'hh', buffer => 40, similar => 409,
            expires => 1200 } } '/x', '/some'),
    { host => 'server', uri => '/x', types => 'json form', ignored => 'ss',
      buffer => 50, similar => 200, expires => 3600 },
    map({ { uri => $_, types => 'json text', ignored => 'll', buffer => 60,
            expires => 3600 } } '/own', '/own/below'),
    { uri => '/own/off', types => '', ignored => '', buffer => 0, expires => 3600 });

our %type = (form => 'application/x-www-form-urlencoded',
             json => 'application/json', text => 'text/plain');
our @spelt = ([ form => 'a=1&b=2', 'b=2&a=1' ], [ json => '[1]', '[ 1 ]' ],
              [ text => 'a b', 'a  b' ]);

our %p;

sub all_of {
    my ($places, $code) = @_;
    return [ map { local %p = (%{$places->[$_]}, n => $_); $code->() }
             0 .. $#$places ];
}

sub places (&) { return all_of(\@places, @_) }

sub bodies (&) { return all_of(\@bodies, @_) }

sub words { return join ' ', @{$_[0]} }

sub line { return "$p{method} $p{uri}/$_[0]?status=$p{kept}" }

sub headers {
    my ($key, @more) = @_;
    return join "\n", "Host: $p{host}", "$p{h}-Key: $key", "$p{h}-Who: me", @more;
}

# A body with a key, and whether another spelling of it is the same.

sub typed {
    my ($type, $key) = @_;
    return join "\n", "Host: " . ($p{host} // 'localhost'),
                      "Content-Type: $type{$type}",
                      defined $key ? "Idempotency-Key: $key$p{n}" : ();
}

sub code { return 200, $_[0] ? 200 : 409 }

sub verdict { return 'NEW', $_[0] ? 'REPLAYED' : 'CONFLICT' }


run_tests();

__DATA__

=== TEST 1: all of it may stand in http, in servers and in locations
--- http_config eval
["", $::all, ("") x 4, $::all]
--- config eval
my $deep = "location / {\n$::all location /a {\n$::all} }\n";
["", "", $::all, "location /a {\n$::all}", "location / { location /a {\n$::all} }",
 "location \@a {\n$::all}\nlocation ~ ^/a(.*) {\n$::all}\n", "$::all$deep"]
--- request: GET /none
--- error_code: 404
--- no_error_log
[warn]

=== TEST 2: nothing of it may stand in main
--- config
--- main_config eval
[misplaced(@::names, qw(idempotency_zone idempotency_secret idempotency_guard))]
--- must_die

=== TEST 3: ... in events
--- config
--- main_config eval
[map "events {\n$_}\n", misplaced(@::names, 'idempotency_guard')]
--- must_die

=== TEST 4: ... in upstream
--- config
--- http_config eval
[map "upstream u { server 127.0.0.1:1;\n$_}\n", misplaced(@::names)]
--- must_die

=== TEST 5: ... in if and limit_except
--- config eval
[map { my $in = $_;
       map "location / { $in {\n$_} }", misplaced(@::names, 'idempotency_guard')
     } 'if ($arg_a)', 'limit_except GET']
--- must_die

=== TEST 6: a directive without a value is refused
--- config eval
[map "$_;  # invalid number of arguments in \"$_\" directive", @::names]
--- must_die

=== TEST 7: a directive stands once in a place
--- config eval
[map { ("$_ $::good{$_};\n") x 2 . ($_ eq 'idempotency_status'
           ? '  # duplicate status' : "  # \"$_\" directive is duplicate") }
     grep !$::repeatable{$_}, @::names]
--- must_die

=== TEST 8: ... but for those whose values add up
--- config eval
join "", map "$_ $::good{$_};\n" x 2, sort keys %::repeatable
--- request: GET /none
--- error_code: 404
--- no_error_log
[warn]

=== TEST 9: idempotency_zone: what it takes, in front of its use or behind it
--- http_config
    idempotency_zone zone=a:1m;
    idempotency_zone zone=unused:1m;
    idempotency_zone zone=smallest:32k;
    idempotency_zone zone=bytes:100000;
    idempotency_zone zone=off:1m evict=off;
    idempotency_zone evict=responses zone=responses:1m;
    idempotency_zone zone=a-b_c.d:1m;
    idempotency zone=behind;
    server { listen 127.0.0.1:$TEST_NGINX_CLIENT_PORT; server_name a; idempotency zone=a; }
    server { listen 127.0.0.1:$TEST_NGINX_CLIENT_PORT; server_name b; idempotency zone=behind; }
    idempotency_zone zone=behind:1m;
--- config
location = /ok { idempotency zone=a-b_c.d; return 204; }
--- request: GET /ok
--- error_code: 204
--- no_error_log
[warn]

=== TEST 10: idempotency_zone stands in http only
--- config alone
idempotency_zone zone=a:1m;  # "idempotency_zone" directive is not allowed here
location / { idempotency_zone zone=a:1m; }  # "idempotency_zone" directive is not allowed here
--- must_die

=== TEST 11: idempotency_zone: what it doesn't take
--- config
--- http_config alone
idempotency_zone;  # invalid number of arguments in "idempotency_zone" directive
idempotency_zone zone=a;  # invalid zone "zone=a"
idempotency_zone zone=a:;  # invalid zone size
idempotency_zone zone=a:x;  # invalid zone size
idempotency_zone zone=a:1x;  # invalid zone size
idempotency_zone zone=a:-1m;  # invalid zone size
idempotency_zone zone=a:99999999999999999999;  # invalid zone size
idempotency_zone zone=:1m;  # invalid zone "zone=:1m"
idempotency_zone "zone=a	b:1m";  # invalid zone "zone=a	b:1m"
idempotency_zone zone=;  # invalid parameter "zone="
idempotency_zone a:1m;  # invalid parameter "a:1m"
idempotency_zone zone=a:1m x;  # invalid parameter "x"
idempotency_zone zone=a:1m rate=1r/s;  # invalid parameter "rate=1r/s"
idempotency_zone zone=a:1m evict=;  # "evict="
idempotency_zone zone=a:1m evict=all;  # "evict=all"
idempotency_zone zone=a:1m evict=OFF;  # "evict=OFF"
idempotency_zone zone=a:1m evict=off evict=responses;  # "evict=responses"
idempotency_zone zone=a:1m zone=b:1m;  # invalid parameter "zone=b:1m"
idempotency_zone evict=off;  # must have "zone" parameter
idempotency_zone zone=a:31k;  # zone "a" is too small
idempotency_zone zone=a:1;  # zone "a" is too small
idempotency_zone zone=a:1m; idempotency_zone zone=a:1m;  # zone "a" is already defined
idempotency_zone zone=a:1m; idempotency_zone zone=a:2m;  # zone "a" is already defined
limit_req_zone $arg_a zone=x:1m rate=1r/s; idempotency_zone zone=x:1m;  # "x" is already declared for a diff
--- must_die

=== TEST 12: idempotency: the zone has to be one
--- http_config
limit_req_zone $uri zone=limit:64k rate=1r/s;
--- config located
idempotency on;  # invalid parameter "on"
idempotency z;  # invalid parameter "z"
idempotency zone;  # invalid parameter "zone"
idempotency zone=;  # invalid parameter "zone="
idempotency zone=z:1m;  # zone "z:1m" is unknown
idempotency zone=z off;  # invalid number of arguments
idempotency off zone=z;  # invalid number of arguments
idempotency zone=z zone=z;  # invalid number of arguments
idempotency zone=x;  # "idempotency" zone "x" is unknown
idempotency zone=Z;  # "idempotency" zone "Z" is unknown
idempotency zone=limit;  # "idempotency" zone "limit" is unknown
--- must_die

=== TEST 13: idempotency: an unknown zone, in a server and in http
--- http_config eval
["", "idempotency zone=x;  # \"idempotency\" zone \"x\" is unknown\n"]
--- config eval
["idempotency zone=x;  # \"idempotency\" zone \"x\" is unknown\nlocation / { }",
 "idempotency zone=y;"]
--- must_die

=== TEST 14: ... in http without a zone or a server
--- config
--- main_config
http {
idempotency zone=x;  # "idempotency" zone "x" is unknown
}
--- must_die

=== TEST 15: idempotency_methods: those that nginx knows
--- config located
idempotency_methods FOO;  # invalid value "FOO"
idempotency_methods POST FOO;  # invalid value "FOO"
idempotency_methods POST,PATCH;  # invalid value "POST,PATCH"
--- must_die

=== TEST 16: nobody has such a variable
--- config eval
[map "idempotency_$_ \$no_such_variable;", qw(key scope identity bind bypass)]
--- must_die
--- error_log
unknown "no_such_variable" variable

=== TEST 17: idempotency_key: what can never have a value is none of the sources
--- http_config eval
[("") x (2 * @::never), map "idempotency_key $_;  # invalid value \"" . tr{"}{}dr
                . "\" in \"idempotency_key\"\n", @::never]
--- config eval
[(map { my $why = "  # invalid value \"" . tr{"}{}dr . "\" in \"idempotency_key\"";
        map "idempotency_key $_;$why", $_, "\$http_a $_"
      } @::never), ("") x @::never]
--- must_die

=== TEST 18: strings, choices and switches
--- config located
idempotency_key $http_a ${open;  # the closing bracket in "open" variable
idempotency_scope a b;  # invalid number of arguments
idempotency_identity a b;  # invalid number of arguments
idempotency_log_level debug;  # invalid value "debug"
idempotency_dry_run maybe;  # invalid value "maybe" in "idempotency_dry_run" directive
idempotency_dry_run on off;  # invalid number of arguments
idempotency_docs a b;  # invalid number of arguments
idempotency_docs "a b";  # invalid URL
idempotency_docs "https://a/<b>";  # invalid URL
idempotency_docs 'a"b';  # invalid URL
idempotency_store any;  # unknown directive "idempotency_store"
--- must_die

=== TEST 19: idempotency_docs: no control character
--- config eval
"idempotency_docs 'a\x01b';  # invalid URL"
--- must_die

=== TEST 20: a choice is one of those that there are, in lower case
--- config eval located
join "\n", map { my $name = $_;
                 (map "$name $_;  # invalid value \"$_\"", qw(what ON)),
                 "$name $::good{$name} $::good{$name};  # invalid number of arguments in "
                 . "\"$name\""
               } @::choices
--- must_die

=== TEST 21: numbers, sizes and times
--- config eval located
join "\n", table('idempotency_key_max_length', [qw(x -1 1k)], 'invalid number'),
    'idempotency_key_max_length 0;  # must be equal to or greater than 1',
    table('idempotency_max_response', [qw(x -1 1t)],
          '"idempotency_max_response" directive invalid value'),
    table('idempotency_normalize_buffer', [qw(x -1 1g)],
          '"idempotency_normalize_buffer" directive invalid value'),
    table(\@::times, ["$::too_long"], 'is too long'),
    table(\@::times, ['1h 2h'], 'invalid number of arguments'),
    table(\@::times, [0], 'must not be zero'),
    table(\@::times, [qw(x -1 1q 24hh)], 'invalid value'),
    table('idempotency_key_max_age', [0], 'must not be zero'),
    table('idempotency_key_max_age', ["$::too_long"], 'is too long'),
    table('idempotency_key_max_age', ['x'], 'invalid value')
--- must_die

=== TEST 22: idempotency_normalize
--- config located
idempotency_normalize xml;  # invalid value "xml"
idempotency_normalize form xml;  # invalid value "xml"
idempotency_normalize form,json;  # invalid value "form,json"
idempotency_normalize on;  # invalid value "on"
idempotency_normalize off form;  # has both "off" and types
idempotency_normalize form json off;  # has both "off" and types
--- must_die

=== TEST 23: idempotency_ignore_cookies
--- config located
idempotency_ignore_cookies a**;  # invalid cookie name "a**"
idempotency_ignore_cookies *a*;  # invalid cookie name "*a*"
idempotency_ignore_cookies **;  # invalid cookie name "**"
idempotency_ignore_cookies a*b*;  # invalid cookie name "a*b*"
idempotency_ignore_cookies a=b;  # invalid cookie name "a=b"
idempotency_ignore_cookies a=;  # invalid cookie name "a="
idempotency_ignore_cookies =;  # invalid cookie name "="
idempotency_ignore_cookies "";  # invalid cookie name ""
idempotency_ignore_cookies "a b";  # invalid cookie name "a b"
idempotency_ignore_cookies "a;b";  # invalid cookie name "a;b"
idempotency_ignore_cookies a b* *c*;  # invalid cookie name "*c*"
idempotency_ignore_cookies off a;  # has both "off" and names
idempotency_ignore_cookies a off;  # has both "off" and names
idempotency_ignore_cookies off off;  # has both "off" and names
idempotency_ignore_cookies off; idempotency_ignore_cookies off;  # "idempotency_ignore_cookies" directive is duplicate
idempotency_ignore_cookies off; idempotency_ignore_cookies a;  # has both "off" and names
idempotency_ignore_cookies a; idempotency_ignore_cookies off;  # has both "off" and names
--- must_die

=== TEST 24: idempotency_ignore_fields: a JSON pointer is one, wherever it stands
--- http_config eval
[("") x 16, map "idempotency_ignore_fields $_;  # invalid JSON pointer \"$_\"\n",
            qw(/~ /a~2 /a/b~ /a~/b)]
--- config eval
[(map { my $why = "  # invalid JSON pointer \"$_\" in \"idempotency_ignore_";
        map "idempotency_ignore_fields $_;$why", $_, "csrf $_ /x",
            "csrf; idempotency_ignore_fields $_", "a; location / { } "
                . "idempotency_ignore_fields $_"
      } qw(/~ /a~2 /a/b~ /a~/b)), ("") x 4]
--- must_die

=== TEST 25: idempotency_keep
--- config eval located
join "\n", map({ "idempotency_keep $_;  # \"$_\"" } qw(x 99 100 199 600 1000 2x 1xx 6xx 2XX
    20x 2xxx -200 !x !99 !1xx !!200 ! !default !any), '200,201'),
    map "idempotency_keep $_->[0];  # \"$_->[1]\"",
    ['200 any', 'any'], ['200 default', 'default'], ['default any', 'any'],
    ['any default', 'default'], ['default !default', '!default'], ['2xx 999', '999'],
    ['default !6xx', '!6xx']
--- must_die

=== TEST 26: idempotency_status: a word and a code, once each, and none that nginx has a meaning for
--- config eval located
join "\n", map({ "idempotency_status $_;  # \"$_\"" } qw(conflict conflict= conflict=x
    conflict=99 conflict=200 conflict=399 conflict=600 conflict=4220 conflict=-409 =409
    new=409 Conflict=409 409)),
    'idempotency_status conflict=422 what=409;  # "what=409"',
    'idempotency_status conflict=422 conflict=409;  # duplicate status "conflict=409"',
    map "idempotency_status conflict=$_;  # invalid status \"conflict=$_\", nginx has a mean",
        408, 444, 494, 495, 496, 497, 499
--- must_die

=== TEST 27: idempotency_quota
--- config eval located
join "\n", map({ "idempotency_quota $_;  # invalid number \"$_\"" } qw(0 -1 x 1.5 1k on)),
    'idempotency_quota off x;  # invalid number "off"',
    'idempotency_quota 1 2 3;  # invalid number of arguments'
--- must_die

=== TEST 28: idempotency_window with variables: once, known ones, and no measure for the age of a key
--- config eval
['location / { idempotency_window $arg_a; idempotency_window 1h; }  # "idempotency_window" directive is duplicate',
 'location / { idempotency_window 1h; idempotency_window $arg_a; }  # "idempotency_window" directive is duplicate',
 'location / { idempotency_window $arg_a; idempotency_window $arg_b; }  # "idempotency_window" directive is duplicate',
 map "$_  # \"idempotency_window\" with variables needs an \"idempotency_key_max_age\"",
     'location / { idempotency zone=z; idempotency_key_format uuid7; idempotency_window $arg_a; }',
     'idempotency_window $arg_a; location / { location /a { idempotency zone=z; idempotency_key_format uuid7; } }']
--- must_die

=== TEST 29: idempotency_replay_header is a name
--- config eval located
join "\n", map "idempotency_replay_header $_->[0];  # invalid header name \"$_->[1]\"",
    ['""', ''], ['"a b"', 'a b'], ['X:', 'X:'], ['é', 'é'], ['a/b', 'a/b']
--- must_die

=== TEST 30: what the directives take
--- config eval together
join "\n", table(\@::times, [qw(1 1s 1ms 1500ms 1d 2w 1h30m)]),
    table('idempotency_status', [map "$_=460", qw(conflict in_progress in_doubt not_kept
        similar expired missing malformed limited unavailable)]),
    table('idempotency_status', ['conflict=400 missing=599']),
    table('idempotency_keep', ['default', 'any', '200', '2xx 3xx 4xx 5xx', '200 599',
        '2xx 200', 'default 200', 'default !5xx 503', 'any !200', '!5xx', '2xx !201',
        '!200 200 !200']),
    table('idempotency_methods', ['POST', 'GET', 'GET HEAD POST PUT DELETE PATCH OPTIONS']),
    table('idempotency_in_progress', [qw(wait reject accepted)]),
    table('idempotency_in_doubt', [qw(reject retry)]),
    table('idempotency_unavailable', [qw(reject pass)]),
    table('idempotency_missing_key', [qw(pass reject content form)]),
    table('idempotency_similar', [qw(off warn reject)]),
    table('idempotency_normalize', ['off', 'form', 'json', 'multipart', 'text',
        'text multipart json form', 'Form JSON']),
    table('idempotency_normalize_buffer', [qw(0 1 1k 100m)]),
    table('idempotency_ignore_fields', ['a', '""', 'a a', '/', '/a/0/b~0c', 'a~2', 'a/~b',
        '/a /a/b /a']),
    table('idempotency_ignore_cookies', ['off', '*', 'a', 'a a', 'a*', 'Off', 'off*']),
    table('idempotency_bind', ['a', '""', '$http_a $http_a', '$arg_a$arg_b',
        '$idempotency_field_x']),
    table('idempotency_replay_header', ['off', 'X-Replayed', 'x_1', 'OFF', "\"!#%&'*+-.^`|~\""]),
    table('idempotency_window', ['$arg_a', '${arg_a}h', '"$arg_a $arg_b"']),
    'idempotency_key_format uuid7; idempotency_window $arg_a;',
    'idempotency_key_format uuid7; idempotency_window $arg_a; idempotency zone=z; idempotency_key_max_age 1d;',
    table('idempotency_key', ['$idempotency_field_x', '"a${idempotency_field_x}b"',
        '$idempotency_key$arg_a', '${idempotency_field_x}$idempotency_key',
        '"$idempotency_key-$arg_a"', '$IDEMPOTENCY_FIELD_X', '"a$http_a"', '"${http_a}b"']),
    table('idempotency_key_format', [qw(any sf-string uuid uuid7)]),
    table('idempotency_quota', ['off', 1, 1000000, '5 $remote_user']),
    table('idempotency_replay_cookies', [qw(identified always never)]),
    table('idempotency_log_level', [qw(info notice warn error)]),
    table('idempotency_dry_run', [qw(on off)])
--- request: GET /ok
--- error_code: 204
--- no_error_log
[warn]

=== TEST 31: idempotency_guard stands in locations, once in each
--- http_config
--- config
location = /ok { return 204; }
location /a { idempotency_guard; location /a/b { idempotency_guard; } }
--- request: GET /ok
--- error_code: 204
--- no_error_log
[warn]

=== TEST 32: idempotency_guard: where and how not
--- http_config eval
["", "", "", "idempotency_guard;  # \"idempotency_guard\" directive is not allowed here\n"]
--- config eval
["location / { idempotency_guard; idempotency_guard; }  # \"idempotency_guard\" directive is dupl",
 "location / { idempotency_guard on; }  # invalid number of arguments in \"idempotency_guard\"",
 "idempotency_guard;  # \"idempotency_guard\" directive is not allowed here", ""]
--- must_die

=== TEST 33: what is in force: the methods and the key, of http, a server and a location
--- http_config eval
"idempotency zone=z;\n" . settings(0) . "
server {
    listen 127.0.0.1:\$TEST_NGINX_CLIENT_PORT;
    server_name server;
    " . settings(1) . "
    location / { proxy_pass http://backend; }
}\n"
--- config eval
"location / { proxy_pass http://backend; }
location /own {
    " . settings(2) . "
    proxy_pass http://backend;
    location /own/below { proxy_pass http://backend; }
}\n"
--- request eval
places { map "$_ $::p{uri}/a?status=$::p{kept}", (qw(PUT POST PATCH)) x 2 }
--- more_headers eval: places { map headers("$_$::p{n}"), (qw(PUT POST PATCH)) x 2 }
--- error_code eval: places { ($::p{kept}) x 6 }
--- idempotency_status eval
words places { map { my $s = $_; map { $_ eq $::p{method} ? $s : '-' } qw(PUT POST PATCH) }
        qw(NEW REPLAYED) }

=== TEST 34: ... the status and the page of a refusal
--- request eval: places { line('b'), line('b') . '&other' }
--- more_headers eval: places { (headers("b$::p{n}")) x 2 }
--- error_code eval: places { $::p{kept}, $::p{conflict} }
--- idempotency_status eval: words places { 'NEW CONFLICT' }
--- response_headers eval
places { '!Link', "Link: <https://$::p{docs}.example/>; rel=\"describedby\"" }

=== TEST 35: ... the bypass, and no other place's
--- request eval: places { (line('c')) x 6 }
--- more_headers eval
places { map { (headers("c$_$::p{n}", "$_-Bypass: 1")) x 2 } qw(X Y Z) }
--- error_code eval: places { ($::p{kept}) x 6 }
--- idempotency_status eval
words places { map { $_ eq $::p{h} ? 'BYPASS BYPASS' : 'NEW REPLAYED' } qw(X Y Z) }

=== TEST 36: ... the identity, and no other place's
--- request eval: places { (line('d')) x 3 }
--- more_headers eval
places { headers("d$::p{n}"), headers("d$::p{n}", map "$_-Who: them", grep $_ ne $::p{h},
         qw(X Y Z)), headers("d$::p{n}") =~ s/me$/them/r }
--- error_code eval: places { $::p{kept}, $::p{kept}, $::p{conflict} }
--- idempotency_status eval: words places { 'NEW REPLAYED CONFLICT' }

=== TEST 37: ... what a missing key is
--- request eval: places { line('e') }
--- more_headers eval: places { "Host: $::p{host}\n$::p{h}-Who: me" }
--- error_code eval: places { $::p{missing} // $::p{kept} }
--- idempotency_status: MISSING - - -

=== TEST 38: ... how long a key may be
--- request eval: places { (line('f')) x 2 }
--- more_headers eval
places { map headers(substr "f$::p{n}" . 'k' x 16, 0, $_), $::p{max}, $::p{max} + 1 }
--- error_code eval: places { $::p{kept}, 400 }
--- idempotency_status eval: words places { 'NEW MALFORMED' }

=== TEST 39: ... which responses are kept
--- request eval
places { ("$::p{method} $::p{uri}/g?status=" . ($::p{released} // 999)) x 2 }
--- more_headers eval: places { (headers("g$::p{n}")) x 2 }
--- error_code eval: places { ($::p{released} // 999) x 2 }
--- idempotency_status: NEW NEW NEW REPLAYED NEW NEW NEW NEW

=== TEST 40: ... how long a response may be
--- request eval: places { map { (line('h') . "&size=" . ($::p{size} + $_)) x 2 } 0, 1 }
--- more_headers eval: places { map { (headers("h$_$::p{n}")) x 2 } 0, 1 }
--- error_code eval: places { ($::p{kept}) x 3, 409 }
--- idempotency_status eval: words places { 'NEW REPLAYED NEW NOT_KEPT' }

=== TEST 41: ... which lines are replayed
--- request eval
places { (line('i') . "&h=Set-Cookie:%20a=b" . join '', map "&h=$_-Hidden:%20x", qw(X Y Z)) x 2 }
--- more_headers eval: places { (headers("i$::p{n}")) x 2 }
--- error_code eval: places { ($::p{kept}) x 2 }
--- idempotency_status eval: words places { 'NEW REPLAYED' }
--- varies: Set-Cookie X-Hidden Y-Hidden Z-Hidden
--- response_headers eval
places { join("\n", 'Set-Cookie: a=b', map "$_-Hidden: x", qw(X Y Z)),
         join("\n", $::p{cookies} ? '!Set-Cookie' : 'Set-Cookie: a=b',
              map $_ eq $::p{h} ? "!$_-Hidden" : "$_-Hidden: x", qw(X Y Z)) }

=== TEST 42: ... how loud the log is
--- request eval: places { line('j'), line('j') . '&other' }
--- more_headers eval: places { (headers("j$::p{n}")) x 2 }
--- error_code eval: places { $::p{kept}, $::p{conflict} }
--- error_log eval: places { qr/\[$::p{level}\].* idempotency.*"$::p{method} $::p{uri}\/j/ }

=== TEST 43: ... which keys are one
--- request eval
my @of = map "$_->{method} $_->{uri}/k?status=$_->{kept}", @::places[0 .. 2];
[(@of) x 2]
--- more_headers eval
my @of = map "Host: $_->{host}\n$_->{h}-Key: scope", @::places[0 .. 2];
[(@of) x 2]
--- error_code: 200 404 500 200 404 500
--- idempotency_status: NEW NEW NEW REPLAYED REPLAYED REPLAYED

=== TEST 44: ... what is told while the first is under way
--- init
package main;
places { pending($::p{method}, "$::p{uri}/q?id=q$::p{n}&gate=1", host => $::p{host},
                 headers => [ "$::p{h}-Key: q$::p{n}", "$::p{h}-Who: me" ]) }
--- request eval: places { "$::p{method} $::p{uri}/q?id=q$::p{n}&gate=1" }
--- more_headers eval: places { headers("q$::p{n}") }
--- error_code: 409 202 202 202
--- idempotency_status: IN_PROGRESS

=== TEST 45: a scope that two servers inherit is one: a key is bound to one of them
--- http_config
    idempotency zone=z;
    idempotency_scope http2;
    server {
        listen 127.0.0.1:$TEST_NGINX_CLIENT_PORT;
        server_name other;
        location / { proxy_pass http://backend; }
    }
--- config
    location / { proxy_pass http://backend; }
--- request: POST /x
--- more_headers eval
[map "Idempotency-Key: inherited\nHost: $_", qw(localhost other localhost)]
--- error_code: 200 409 200
--- idempotency_status: NEW CONFLICT REPLAYED

=== TEST 46: idempotency: off and on again in a location and those within
--- http_config
    idempotency zone=z;
--- config
    idempotency off;

    location / { proxy_pass http://backend; }

    location /on {
        idempotency zone=z;
        proxy_pass http://backend;

        location /on/below { proxy_pass http://backend; }
        location /on/off { idempotency off; proxy_pass http://backend; }
    }
--- request eval: [map { ("POST $_") x 2 } qw(/x /on /on/below /on/off)]
--- more_headers eval
[map { ("Idempotency-Key: switch$_") x 2 } qw(/x /on /on/below /on/off)]
--- idempotency_status: - - NEW REPLAYED NEW REPLAYED - -

=== TEST 47: idempotency_dry_run: on and off
--- config
    idempotency zone=z;
    idempotency_dry_run on;

    location / { proxy_pass http://backend; }
    location /off { idempotency_dry_run off; proxy_pass http://backend; }
--- request eval: ["POST /dry", "POST /dry", "POST /off", "POST /off"]
--- more_headers eval: [map { ("Idempotency-Key: $_") x 2 } qw(dry wet)]
--- idempotency_status: NEW_DRY_RUN REPLAYED_DRY_RUN NEW REPLAYED

=== TEST 48: idempotency_key_format and idempotency_window of a server and a location
--- config
    idempotency zone=z;
    idempotency_key_format sf-string;
    idempotency_window 20m;
    add_header X-Expires $idempotency_expires;

    location / { proxy_pass http://backend; }
    location /own {
        idempotency_key_format any;
        idempotency_window 2h;
        proxy_pass http://backend;
    }
--- request eval: ["POST /any", "POST /any", "POST /own"]
--- more_headers eval: [map "Idempotency-Key: $_", qw(of-server "of-server" of-location)]
--- error_code: 400 200 200
--- idempotency_status: MALFORMED NEW NEW
--- response_headers eval: ["", "X-Expires: 1200", "X-Expires: 7200"]

=== TEST 49: what is in force for bodies: which are normalized
--- http_config
    idempotency zone=z;
    idempotency_missing_key content;
    idempotency_normalize json;
    idempotency_normalize_buffer 40;
    idempotency_ignore_fields hh /in/hh;
    idempotency_content_window 20m;
    idempotency_similar reject;

    add_header X-Expires $idempotency_expires;

    server {
        listen 127.0.0.1:$TEST_NGINX_CLIENT_PORT;
        server_name server;

        idempotency_normalize json form;
        idempotency_normalize_buffer 50;
        idempotency_ignore_fields ss;
        idempotency_ignore_fields /in/ss;
        idempotency_content_window 1h;
        idempotency_similar warn;

        location / { proxy_pass http://backend; }
    }
--- config
    location / { proxy_pass http://backend; }

    location /some {
        idempotency_key_max_length 255;
        proxy_pass http://backend;
    }

    location /own {
        idempotency_normalize json text;
        idempotency_normalize_buffer 60;
        idempotency_ignore_fields /in/ll ll;
        idempotency_content_window 1h;
        idempotency_similar off;

        proxy_pass http://backend;

        location /own/below { proxy_pass http://backend; }
        location /own/off { idempotency_normalize off; proxy_pass http://backend; }
    }
--- request eval
bodies { map { my ($type, @spelt) = @$_; map "POST $::p{uri}/l\n$_", @spelt } @::spelt }
--- more_headers eval: bodies { map { (typed($_->[0], "l$_->[0]")) x 2 } @::spelt }
--- error_code eval: bodies { map code($::p{types} =~ $_->[0]), @::spelt }
--- idempotency_status eval: words bodies { map verdict($::p{types} =~ $_->[0]), @::spelt }
--- varies: X-Expires

=== TEST 50: ... which fields are ignored
--- request eval
bodies { map { my $f = $_; map "POST $::p{uri}/m\n$_", qq({"$f":1}), qq({"$f":2}),
               qq({"in":{"$f":1}}), qq({"in":{"$f":2}}) } qw(hh ss ll) }
--- more_headers eval
bodies { map { my $f = $_; map { (typed('json', "m$f$_")) x 2 } 1, 2 } qw(hh ss ll) }
--- error_code eval: bodies { map { (code($_ eq $::p{ignored})) x 2 } qw(hh ss ll) }
--- idempotency_status eval
words bodies { map { (verdict($_ eq $::p{ignored})) x 2 } qw(hh ss ll) }
--- varies: X-Expires

=== TEST 51: ... up to how many bytes bodies are normalized
--- request eval
bodies { map { my $x = 'x' x ($_ - 5); map "POST $::p{uri}/n\n$_", qq(["$x" ]), qq([ "$x"])
             } 40, 41, 50, 51, 60, 61 }
--- more_headers eval: bodies { map { (typed('json', "n$_-")) x 2 } 40, 41, 50, 51, 60, 61 }
--- error_code eval: bodies { map code($_ <= $::p{buffer}), 40, 41, 50, 51, 60, 61 }
--- idempotency_status eval
words bodies { map verdict($_ <= $::p{buffer}), 40, 41, 50, 51, 60, 61 }
--- varies: X-Expires

=== TEST 52: ... what becomes of one content under two keys
--- request eval: bodies { ("POST $::p{uri}/o\nc") x 2 }
--- more_headers eval: bodies { map typed('text', "o$_"), 1, 2 }
--- error_code eval: bodies { 200, $::p{similar} // 200 }
--- idempotency_status eval: words bodies { 'NEW', $::p{similar} ? 'SIMILAR' : 'NEW' }

=== TEST 53: ... without a key, the content is it, for as long as it is said
--- request eval: bodies { ("POST $::p{uri}/p\nc") x 2 }
--- more_headers eval: bodies { (typed('text')) x 2 }
--- idempotency_status eval: 'NEW REPLAYED ' x 6
--- varies: X-Expires
--- response_headers eval: bodies { "X-Expires: $::p{expires}", "" }
