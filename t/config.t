# SPEC, "Directives": every directive in every place it is allowed in, what it
# inherits and overrides, and each bad configuration with its one clear line.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::Bin/lib";
use Idempotency;

use Time::HiRes qw(sleep);


# Every directive with a good value.

my %good = (
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
    idempotency_status => 'conflict=422 missing=428',
    idempotency_docs => 'https://example.com/docs',
    idempotency_bypass => '$arg_bypass $http_x_bypass',
    idempotency_dry_run => 'on',
    idempotency_log_level => 'warn',
);

# These may be given several times in one place, as their like in nginx.

my %repeatable = map { $_ => 1 } qw(idempotency_bind idempotency_bypass
                                    idempotency_hide_header
                                    idempotency_ignore_cookies
                                    idempotency_ignore_fields);

my $all = join '', map { "$_ $good{$_};\n" } sort keys %good;


sub accepted {
    my ($name, %o) = @_;

    local $Test::Builder::Level = $Test::Builder::Level + 1;

    my ($ok, $out) = config_test(server => '', %o);
    ok($ok, $name) or diag $out;
    unlike($out, qr/\[(?:warn|error|crit|alert|emerg)\]/,
           '... with nothing to say');
}

# Refused: with exit status 1 and one line that says why and where. Where is
# said exactly if the fault is in a file of its own, in its fourth line.

sub refused {
    my ($name, $why, %o) = @_;

    local $Test::Builder::Level = $Test::Builder::Level + 1;

    my ($ok, $out) = config_test(server => '', %o);
    my @said = $out =~ /\[emerg\] (.*)/g;

    ok(!$ok, $name);
    is(scalar @said, 1, '... one line') or diag $out;
    like($said[0] // '', $why, '... that says why');
    return if $o{anywhere};

    my $where = $o{files} ? qr{fault\.conf:4} : qr{nginx\.conf:\d+};
    like($said[0] // '', qr{ in ROOT/$where$}, '... and where');
}

sub fault {
    my ($lines) = @_;

    return (files => { 'fault.conf' => "\n\n\n$lines\n\n" });
}

my $include = "include \$TEST_NGINX_ROOT/fault.conf;\n";


# A whole file, for a place that nginx() has no option for.

sub conf {
    my ($events) = @_;

    return (module_path() ? 'load_module ' . module_path() . ";\n" : '')
           . "events { $events }\nhttp { access_log off; }\n";
}


# --- where they may stand ----------------------------------------------------

accepted('nothing of it');
accepted('all of it in http', http => $all);
accepted('all of it in a server', server => $all);
accepted('all of it in a location', server => "location / {\n$all}\n");
accepted('all of it in a nested location',
         server => "location / { location /a {\n$all} }\n");
accepted('all of it everywhere', http => $all,
         server => "$all location / {\n$all location /a {\n$all} }\n");
accepted('all of it in a named location', server => "location \@a {\n$all}\n");
accepted('all of it in a location by expression',
         server => "location ~ ^/a(.*) {\n$all}\n");

for my $name (sort keys %good) {
    my $line = "$name $good{$name};\n";
    my $context = qr/"$name" directive is not allowed here/;

    refused("$name in main", $context, main => $line);
    refused("$name in events", $context, conf => conf($line));
    refused("$name in upstream", $context,
            http => "upstream u { server 127.0.0.1:1; $line }\n");
    refused("$name in if", $context,
            server => "location / { if (\$arg_a) { $line } }\n");
    refused("$name in limit_except", $context,
            server => "location / { limit_except GET { $line } }\n");

    refused("$name without a value",
            qr/invalid number of arguments in "$name" directive/,
            server => "$name;\n");

    if ($repeatable{$name}) {
        accepted("$name twice", server => $line x 2);

    } else {
        refused("$name twice",
                qr/"$name" directive is duplicate|duplicate status/,
                server => $line x 2);
    }
}

my $zone_context = qr/"idempotency_zone" directive is not allowed here/;

refused('idempotency_zone in main', $zone_context,
        main => "idempotency_zone zone=a:1m;\n");
refused('idempotency_zone in a server', $zone_context,
        server => "idempotency_zone zone=a:1m;\n");
refused('idempotency_zone in a location', $zone_context,
        server => "location / { idempotency_zone zone=a:1m; }\n");


# --- zones -------------------------------------------------------------------

sub zone { return (zone => 0, http => join '', map { "$_;\n" } @_) }

accepted('a zone', zone('idempotency_zone zone=a:1m'));
accepted('a zone that is not used', zone('idempotency_zone zone=a:1m'));
accepted('the smallest zone', zone('idempotency_zone zone=a:32k'));
accepted('a zone in bytes', zone('idempotency_zone zone=a:100000'));
accepted('several zones', zone('idempotency_zone zone=a:1m',
                               'idempotency_zone zone=b:2m'));
accepted('evict=off', zone('idempotency_zone zone=a:1m evict=off'));
accepted('evict=responses', zone('idempotency_zone zone=a:1m evict=responses'));
accepted('parameters in another order',
         zone('idempotency_zone evict=responses zone=a:1m'));
accepted('a zone behind its use',
         zone('idempotency zone=a', 'idempotency_zone zone=a:1m'));
accepted('a zone behind a server that uses it',
         zone => 0, http => "server {\nlisten 127.0.0.1:\$TEST_NGINX_PORT;\n"
                            . "idempotency zone=a;\n}\n"
                            . "idempotency_zone zone=a:1m;\n");
accepted('a name with dots and dashes',
         zone('idempotency_zone zone=a-b_c.d:1m', 'idempotency zone=a-b_c.d'));
accepted('two servers',
         http => join '', map {
             "server {\nlisten 127.0.0.1:\$TEST_NGINX_PORT;\n"
             . "server_name $_;\nidempotency zone=z;\n}\n"
         } qw(a b));

refused('an unknown zone', qr/"idempotency" zone "x" is unknown/,
        fault('idempotency zone=x;'), server => "location / { $include }\n");
refused('an unknown zone in a server', qr/"idempotency" zone "x" is unknown/,
        fault('idempotency zone=x;'), server => "$include location / { }\n");
refused('an unknown zone in http', qr/"idempotency" zone "x" is unknown/,
        fault('idempotency zone=x;'), http => $include);
refused('an unknown zone in http, below it nothing',
        qr/"idempotency" zone "x" is unknown/, anywhere => 1,
        conf => conf('') =~ s/access_log off;/idempotency zone=x;/r);
refused('the first of two unknown zones', qr/"idempotency" zone "x" is unknown/,
        fault('idempotency zone=x;'), http => $include,
        server => "idempotency zone=y;\n");
refused('no zone at all', qr/"idempotency" zone "z" is unknown/,
        zone => 0, server => "idempotency zone=z;\n");
refused('a zone of another case', qr/"idempotency" zone "Z" is unknown/,
        server => "idempotency zone=Z;\n");

refused('a zone that is too small', qr/zone "a" is too small/,
        zone('idempotency_zone zone=a:31k'));
refused('a zone of a few bytes', qr/zone "a" is too small/,
        zone('idempotency_zone zone=a:1'));
refused('a zone defined twice', qr/zone "a" is already defined/,
        fault('idempotency_zone zone=a:1m;'), zone => 0,
        http => "idempotency_zone zone=a:1m;\n$include");
refused('a zone defined with another size',
        qr/size 2097152 of shared memory zone "a" conflicts/,
        zone('idempotency_zone zone=a:1m', 'idempotency_zone zone=a:2m'));

refused("a zone of another module's", qr/"x" is already declared for a diff/,
        zone('limit_req_zone $arg_a zone=x:1m rate=1r/s',
             'idempotency_zone zone=x:1m'));
refused("the use of another module's zone",
        qr/"x" is (?:unknown|already declared for a different use)/,
        zone('limit_req_zone $arg_a zone=x:1m rate=1r/s',
             'idempotency zone=x'));

refused("a bad zone: $_->[0]", $_->[1], zone("idempotency_zone $_->[0]")) for
    [ 'zone=a', qr/invalid zone "zone=a"/ ],
    [ 'zone=a:', qr/invalid zone size/ ],
    [ 'zone=a:x', qr/invalid zone size/ ],
    [ 'zone=a:1x', qr/invalid zone size/ ],
    [ 'zone=a:-1m', qr/invalid zone size/ ],
    [ 'zone=a:99999999999999999999', qr/invalid zone size/ ],
    [ 'zone=:1m', qr/invalid zone "zone=:1m"/ ],
    [ 'zone=', qr/invalid zone "zone="/ ],
    [ 'a:1m', qr/invalid parameter "a:1m"/ ],
    [ 'zone=a:1m x', qr/invalid parameter "x"/ ],
    [ 'zone=a:1m rate=1r/s', qr/invalid parameter "rate=1r\/s"/ ],
    [ 'zone=a:1m evict=', qr/invalid .*"evict="/ ],
    [ 'zone=a:1m evict=all', qr/invalid .*"evict=all"/ ],
    [ 'zone=a:1m evict=OFF', qr/invalid .*"evict=OFF"/ ],
    [ 'zone=a:1m evict=off evict=responses',
      qr/(?:invalid|duplicate) .*"evict=responses"/ ],
    [ 'zone=a:1m zone=b:1m', qr/invalid parameter "zone=b:1m"/ ],
    [ 'evict=off', qr/must have "zone" parameter/ ];

refused('idempotency_zone without a parameter',
        qr/invalid number of arguments in "idempotency_zone" directive/,
        zone('idempotency_zone'));


# --- values ------------------------------------------------------------------

sub bad {
    my ($directive, $why) = @_;

    local $Test::Builder::Level = $Test::Builder::Level + 1;

    refused("bad: $directive", $why, fault("$directive;"),
            server => "location / { $include }\n");
}

bad('idempotency on', qr/invalid parameter "on"/);
bad('idempotency z', qr/invalid parameter "z"/);
bad('idempotency zone', qr/invalid parameter "zone"/);
bad('idempotency zone=', qr/invalid parameter "zone="/);
bad('idempotency zone=z:1m', qr/zone "z:1m" is unknown/);
bad('idempotency zone=z off', qr/invalid number of arguments/);
bad('idempotency off zone=z', qr/invalid number of arguments/);
bad('idempotency zone=z zone=z', qr/invalid number of arguments/);

bad('idempotency_methods FOO', qr/invalid value "FOO"/);
bad('idempotency_methods POST FOO', qr/invalid value "FOO"/);
bad('idempotency_methods POST,PATCH', qr/invalid value "POST,PATCH"/);

# of a variable nginx knows only at the end that nobody has it
for (qw(key scope identity bind bypass)) {
    refused("an unknown variable in idempotency_$_",
            qr/unknown "no_such_variable" variable/, anywhere => 1,
            server => "idempotency_$_ \$no_such_variable;\n");
}

# a key that can never have a value
for my $key ('""', '$idempotency_key', '${idempotency_key}', '$IDEMPOTENCY_KEY',
             '$idempotency_status', '$idempotency_token', '$idempotency_digest',
             '$idempotency_age', '$idempotency_replays', '$idempotency_refusal',
             '$idempotency_detail', '$idempotency_reason',
             '$idempotency_expires', '$idempotency_fence',
             '$idempotency_key$idempotency_token',
             '"${idempotency_key}$idempotency_digest"')
{
    my $why = qr/invalid value "\Q@{[ $key =~ tr{"}{}dr ]}\E" in "idempotency_key"/;

    bad("idempotency_key $key", $why);
    bad("idempotency_key \$http_a $key", $why);
    refused("in http: idempotency_key $key", $why, fault("idempotency_key $key;"),
            http => $include);
}

bad('idempotency_key a ${open', qr/the closing bracket in "open" variable/);
bad('idempotency_scope a b', qr/invalid number of arguments/);
bad('idempotency_identity a b', qr/invalid number of arguments/);

for (qw(idempotency_missing_key idempotency_key_format
        idempotency_replay_cookies idempotency_log_level
        idempotency_in_progress idempotency_in_doubt idempotency_unavailable
        idempotency_similar))
{
    bad("$_ what", qr/invalid value "what"/);
    bad("$_ ON", qr/invalid value "ON"/);
    bad("$_ $good{$_} $good{$_}", qr/invalid number of arguments in "$_"/);
}

bad('idempotency_log_level debug', qr/invalid value "debug"/);
bad('idempotency_dry_run maybe',
    qr/invalid value "maybe" in "idempotency_dry_run" directive/);
bad('idempotency_dry_run on off', qr/invalid number of arguments/);

bad("idempotency_key_max_length $_", qr/invalid (?:number|value)|must be/)
    for qw(x -1 1k 0);

my @times = qw(idempotency_window idempotency_content_window
               idempotency_wait_timeout idempotency_lease);
my $longest = ~0 >> 1;    # of what nginx takes for a time, in milliseconds

for my $name (@times) {
    bad("$name $_", qr/"$name" directive invalid value/) for qw(x -1 1q 24hh);
    bad("$name 0", qr/"$name" directive must not be zero/);
    bad("$name ${longest}ms", qr/"$name" directive is too long/);
    bad("$name 1h 2h", qr/invalid number of arguments/);
    accepted("$name $_", server => "$name $_;\n")
        for '1', '1s', '1ms', '1500ms', '1d', '2w', '1h30m';
}

bad("idempotency_max_response $_",
    qr/"idempotency_max_response" directive invalid value/)
    for qw(x -1 1t);

bad("idempotency_normalize_buffer $_",
    qr/"idempotency_normalize_buffer" directive invalid value/)
    for qw(x -1 1g);

bad("idempotency_normalize $_->[0]", $_->[1]) for
    [ 'xml', qr/invalid value "xml"/ ],
    [ 'form xml', qr/invalid value "xml"/ ],
    [ 'form,json', qr/invalid value "form,json"/ ],
    [ 'on', qr/invalid value "on"/ ],
    [ 'off form', qr/has both "off" and types/ ],
    [ 'form json off', qr/has both "off" and types/ ];

bad("idempotency_ignore_cookies $_->[0]", $_->[1]) for
    map({ [ $_, qr/invalid cookie name "\Q$_\E"/ ] }
        'a**', '*a*', '**', 'a*b*', 'a=b', 'a=', '='),
    [ '""', qr/invalid cookie name ""/ ],
    [ '"a b"', qr/invalid cookie name "a b"/ ],
    [ '"a;b"', qr/invalid cookie name "a;b"/ ],
    [ 'a b* *c*', qr/invalid cookie name "\*c\*"/ ],
    [ 'off a', qr/has both "off" and names/ ],
    [ 'a off', qr/has both "off" and names/ ],
    [ 'off off', qr/has both "off" and names|is duplicate/ ],
    [ 'off; idempotency_ignore_cookies off',
      qr/"idempotency_ignore_cookies" directive is duplicate/ ],
    [ 'off; idempotency_ignore_cookies a', qr/has both "off" and names/ ],
    [ 'a; idempotency_ignore_cookies off', qr/has both "off" and names/ ];

# wherever it stands, and whatever else is ignored
for my $pointer ('/~', '/a~2', '/a/b~', '/a~/b') {
    my $why = qr{invalid JSON pointer "\Q$pointer\E" in "idempotency_ignore_};

    bad("idempotency_ignore_fields $pointer", $why);
    bad("idempotency_ignore_fields csrf $pointer /x", $why);
    bad("idempotency_ignore_fields csrf; idempotency_ignore_fields $pointer",
        $why);
    refused("in http: idempotency_ignore_fields $pointer", $why,
            http => "idempotency_ignore_fields $pointer;\n");
    refused("in a server: idempotency_ignore_fields $pointer", $why,
            server => "idempotency_ignore_fields $pointer;\n");
}

bad("idempotency_keep $_->[0]", qr/invalid .*"\Q$_->[1]\E"/) for
    [ 'x', 'x' ], [ '99', '99' ], [ '100', '100' ], [ '199', '199' ],
    [ '600', '600' ], [ '1000', '1000' ], [ '2x', '2x' ], [ '1xx', '1xx' ],
    [ '6xx', '6xx' ], [ '2XX', '2XX' ], [ '20x', '20x' ], [ '2xxx', '2xxx' ],
    [ '-200', '-200' ], [ '200 any', 'any' ], [ '200 default', 'default' ],
    [ 'default 200', 'default' ], [ '200,201', '200,201' ],
    [ '2xx 999', '999' ];

bad("idempotency_status $_->[0]", $_->[1]) for
    [ 'conflict', qr/invalid .*"conflict"/ ],
    [ 'conflict=', qr/invalid .*"(?:conflict=)?"/ ],
    [ 'conflict=x', qr/invalid .*x"/ ],
    [ 'conflict=99', qr/invalid .*99"/ ],
    [ 'conflict=200', qr/invalid .*200"/ ],
    [ 'conflict=399', qr/invalid .*399"/ ],
    [ 'conflict=600', qr/invalid .*600"/ ],
    [ 'conflict=4220', qr/invalid .*4220"/ ],
    [ 'conflict=-409', qr/invalid .*-409"/ ],
    # what nginx does with these is not what a refusal needs
    map({ [ "conflict=$_", qr/invalid status "conflict=$_", nginx has a mean/ ] }
        408, 444, 494, 495, 496, 497, 499),
    [ '=409', qr/invalid .*"=409"/ ],
    [ 'new=409', qr/invalid .*"new(?:=409)?"/ ],
    [ 'Conflict=409', qr/invalid .*"Conflict(?:=409)?"/ ],
    [ '409', qr/invalid .*"409"/ ],
    [ 'conflict=422 what=409', qr/invalid .*"what(?:=409)?"/ ],
    [ 'conflict=422 conflict=409', qr/duplicate .*"conflict=409"/ ];

bad("idempotency_quota $_->[0]", $_->[1]) for
    map({ [ $_, qr/invalid number "\Q$_\E"/ ] } qw(0 -1 x 1.5 1k on)),
    [ 'off x', qr/invalid number "off"/ ],
    [ '1 2 3', qr/invalid number of arguments/ ];
bad('idempotency_key_max_age 0', qr/must not be zero/);
bad("idempotency_key_max_age ${longest}ms", qr/is too long/);
bad('idempotency_key_max_age x', qr/invalid value/);
bad('idempotency_store any', qr/unknown directive "idempotency_store"/);

bad('idempotency_docs a b', qr/invalid number of arguments/);
bad("idempotency_docs $_", qr/invalid URL/)
    for '"a b"', '"https://a/<b>"', '\'a"b\'', "'a\x01b'";

accepted("idempotency_status $_=460", server => "idempotency_status $_=460;\n")
    for qw(conflict in_progress in_doubt not_kept similar expired missing
           malformed limited unavailable);
accepted("idempotency_status: the bounds",
         server => "idempotency_status conflict=400 missing=599;\n");
accepted("idempotency_keep $_", server => "idempotency_keep $_;\n")
    for 'default', 'any', '200', '2xx 3xx 4xx 5xx', '200 599', '2xx 200';
accepted("idempotency_methods $_", server => "idempotency_methods $_;\n")
    for 'POST', 'GET', 'GET HEAD POST PUT DELETE PATCH OPTIONS';
accepted($_, server => "$_;\n") for
    map({ "idempotency_in_progress $_" } qw(wait reject accepted)),
    map({ "idempotency_in_doubt $_" } qw(reject retry)),
    map({ "idempotency_unavailable $_" } qw(reject pass)),
    map({ "idempotency_missing_key $_" } qw(pass reject content form)),
    map({ "idempotency_similar $_" } qw(off warn reject)),
    map({ "idempotency_normalize $_" } 'off', 'form', 'json', 'multipart',
        'text', 'text multipart json form', 'Form JSON'),
    map({ "idempotency_normalize_buffer $_" } qw(0 1 1k 100m)),
    map({ "idempotency_ignore_fields $_" } 'a', '""', 'a a', '/', '/a/0/b~0c',
        'a~2', 'a/~b', '/a /a/b /a'),
    map({ "idempotency_ignore_cookies $_" } 'off', '*', 'a', 'a a', 'a*',
        'Off', 'off*'),
    map({ "idempotency_bind $_" } 'a', '""', '$http_a $http_a', '$arg_a$arg_b',
        '$idempotency_field_x'),
    map({ "idempotency_key $_" } '$idempotency_field_x',
        '"a${idempotency_field_x}b"', '$idempotency_key$arg_a',
        '${idempotency_field_x}$idempotency_key', '"$idempotency_key-a"',
        '$IDEMPOTENCY_FIELD_X', 'a'),
    map({ "idempotency_key_format $_" } qw(any sf-string uuid uuid7)),
    map({ "idempotency_quota $_" } 'off', 1, 1000000, '5 $remote_user'),
    map({ "idempotency_replay_cookies $_" } qw(identified always never)),
    map({ "idempotency_log_level $_" } qw(info notice warn error)),
    map({ "idempotency_dry_run $_" } qw(on off));


# --- the guard ---------------------------------------------------------------

accepted('idempotency_guard', server => 'location /a { idempotency_guard; }');
accepted('idempotency_guard twice, in two places',
         server => 'location /a { idempotency_guard;'
                   . ' location /a/b { idempotency_guard; } }');
accepted('idempotency_guard without any zone', zone => 0,
         server => 'location /a { idempotency_guard; }');
refused('idempotency_guard twice', qr/"idempotency_guard" directive is dupl/,
        server => 'location / { idempotency_guard; idempotency_guard; }');
refused('idempotency_guard with a value',
        qr/invalid number of arguments in "idempotency_guard" directive/,
        server => 'location / { idempotency_guard on; }');

{
    my $why = qr/"idempotency_guard" directive is not allowed here/;

    refused('idempotency_guard in main', $why, main => "idempotency_guard;\n");
    refused('idempotency_guard in events', $why,
            conf => conf('idempotency_guard;'));
    refused('idempotency_guard in http', $why, http => "idempotency_guard;\n");
    refused('idempotency_guard in a server', $why,
            server => "idempotency_guard;\n");
    refused('idempotency_guard in if', $why,
            server => 'location / { if ($arg_a) { idempotency_guard; } }');
    refused('idempotency_guard in limit_except', $why,
            server => 'location / { limit_except GET { idempotency_guard; } }');
}


# --- what is inherited -------------------------------------------------------

# http says one thing in all of it, and servers and locations say another.

my $n = nginx(http => <<'EOC', server => <<'EOC');
    idempotency zone=z;
    idempotency_methods PUT;
    idempotency_key $http_x_key;
    idempotency_missing_key reject;
    idempotency_key_max_length 8;
    idempotency_scope http;
    idempotency_identity $http_x_who;
    idempotency_keep 2xx;
    idempotency_max_response 2000;
    idempotency_hide_header X-Hidden;
    idempotency_replay_cookies never;
    idempotency_in_progress reject;
    idempotency_status conflict=422 missing=428;
    idempotency_docs https://http.example/;
    idempotency_bypass $http_x_bypass;
    idempotency_log_level warn;

    add_header X-Status $idempotency_status always;

    server {
        listen 127.0.0.1:$TEST_NGINX_PORT;
        server_name server;

        idempotency_methods POST;
        idempotency_key $http_y_key;
        idempotency_missing_key pass;
        idempotency_key_max_length 12;
        idempotency_scope server;
        idempotency_identity $http_y_who;
        idempotency_keep any;
        idempotency_max_response 3000;
        idempotency_hide_header Y-Hidden;
        idempotency_replay_cookies always;
        idempotency_in_progress accepted;
        idempotency_status conflict=423;
        idempotency_docs https://server.example/;
        idempotency_bypass $http_y_bypass;
        idempotency_log_level error;

        location / { proxy_pass http://$TEST_NGINX_BACKEND; }
    }

    server {
        listen 127.0.0.1:$TEST_NGINX_PORT;
        server_name off;

        idempotency off;

        location / { proxy_pass http://$TEST_NGINX_BACKEND; }

        location /on {
            idempotency zone=z;
            proxy_pass http://$TEST_NGINX_BACKEND;

            location /on/below { proxy_pass http://$TEST_NGINX_BACKEND; }

            location /on/off {
                idempotency off;
                proxy_pass http://$TEST_NGINX_BACKEND;
            }
        }
    }

    server {
        listen 127.0.0.1:$TEST_NGINX_PORT;
        server_name dry;

        idempotency_dry_run on;

        location / { proxy_pass http://$TEST_NGINX_BACKEND; }

        location /off {
            idempotency_dry_run off;
            proxy_pass http://$TEST_NGINX_BACKEND;
        }
    }

    server {
        listen 127.0.0.1:$TEST_NGINX_PORT;
        server_name format;

        idempotency_key_format sf-string;

        location / { proxy_pass http://$TEST_NGINX_BACKEND; }

        location /any {
            idempotency_key_format any;
            proxy_pass http://$TEST_NGINX_BACKEND;
        }
    }

    server {
        listen 127.0.0.1:$TEST_NGINX_PORT;
        server_name window;

        idempotency_window 200ms;

        location / { proxy_pass http://$TEST_NGINX_BACKEND; }

        location /long {
            idempotency_window 1h;
            proxy_pass http://$TEST_NGINX_BACKEND;
        }
    }
EOC
    location / { proxy_pass http://$TEST_NGINX_BACKEND; }

    location /own {
        idempotency_methods PATCH;
        idempotency_key $http_z_key;
        idempotency_missing_key pass;
        idempotency_key_max_length 16;
        idempotency_scope location;
        idempotency_identity $http_z_who;
        idempotency_keep 5xx;
        idempotency_max_response 4000;
        idempotency_hide_header Z-Hidden;
        idempotency_replay_cookies always;
        idempotency_in_progress accepted;
        idempotency_status conflict=424;
        idempotency_docs https://location.example/;
        idempotency_bypass $http_z_bypass;
        idempotency_log_level error;

        proxy_pass http://$TEST_NGINX_BACKEND;

        location /own/below { proxy_pass http://$TEST_NGINX_BACKEND; }
    }
EOC

my $id = 'case0';

sub told {
    my ($r) = @_;

    return $r ? "$r->{status} " . ($r->header('X-Status') // '-') : 'nothing';
}

for my $case ([ 'http, from a location', 'localhost', '/x', 'PUT', 'X', 8,
                'reject', [ 200, 404 ], 2000, 'never', 422, 'http', 'warn' ],
              [ 'a server', 'server', '/x', 'POST', 'Y', 12, 'pass',
                [ 404, undef ], 3000, 'always', 423, 'server', 'error' ],
              [ 'a location', 'localhost', '/own', 'PATCH', 'Z', 16, 'pass',
                [ 500, 200 ], 4000, 'always', 424, 'location', 'error' ],
              [ 'a location, from one within', 'localhost', '/own/below',
                'PATCH', 'Z', 16, 'pass', [ 500, 200 ], 4000, 'always', 424,
                'location', 'error' ])
{
    my ($name, $host, $path, $method, $h, $max, $missing, $store, $size,
        $cookies, $conflict, $docs, $level) = @$case;
    my ($binds, $releases) = @$store;

    subtest "in force: $name" => sub {
        my $send = sub {
            my ($query, %o) = @_;

            my $key = exists $o{k} ? delete $o{k} : $id;

            return $n->request($o{method} // $method, "$path?id=$id&$query",
                               host => $host, body => 'b', %o,
                               headers => [ defined $key ? "$h-Key: $key" : (),
                                            "$h-Who: me",
                                            @{$o{headers} // []} ]);
        };

        my $pair = sub {
            my @o = @_;
            $id++;
            return join ', ', map { told($send->(@o)) } 1, 2;
        };

        is($pair->("status=$binds"), "$binds NEW, $binds REPLAYED",
           'idempotency, its methods, its key');
        is(told($send->("status=$binds", body => 'c')), "$conflict CONFLICT",
           'its status');
        is($send->("status=$binds", body => 'c')->header('Link'),
           "<https://$docs.example/>; rel=\"describedby\"", 'its docs');

        for my $other (grep { $_ ne $method } qw(PUT POST PATCH)) {
            is($pair->("status=$binds", method => $other),
               "$binds -, $binds -", "not others' methods: $other");
        }

        $id++;
        my $c = $n->start($method, "$path?id=$id&status=$binds&gate=1",
                          host => $host, body => 'b',
                          headers => [ "$h-Key: $id", "$h-Who: me" ]);
        held($id);
        is(told($send->("status=$binds&gate=1")),
           ($level eq 'warn' ? '409' : '202') . ' IN_PROGRESS',
           'its in_progress');
        go($id);
        is(told($c->response), "$binds NEW", '... whose owner ends');

        is($pair->("status=$binds", headers => [ "$h-Bypass: 1" ]),
           "$binds BYPASS, $binds BYPASS", 'its bypass');

        for my $other (grep { $_ ne $h } qw(X Y Z)) {
            is($pair->("status=$binds", headers => [ "$other-Bypass: 1",
                                                     "$other-Who: $id" ]),
               "$binds NEW, $binds REPLAYED", "not others' bypass: $other");
        }

        is($pair->("status=$binds", headers => [ 'X-A: 1' ]),
           "$binds NEW, $binds REPLAYED", 'a new one');
        is(told($n->request($method, "$path?id=$id&status=$binds",
                            host => $host, body => 'b',
                            headers => [ "$h-Key: $id", "$h-Who: other" ])),
           "$conflict CONFLICT", 'its identity');

        is($pair->("status=$binds", k => undef),
           $missing eq 'reject' ? '428 MISSING, 428 MISSING'
                                : "$binds -, $binds -", 'its missing_key');

        $id++;
        is(told($send->("status=$binds", k => substr "$id-$path-longlonglong",
                                                     0, $max)),
           "$binds NEW", 'its key_max_length');
        is(told($send->("status=$binds", k => 'k' x ($max + 1))),
           '400 MALFORMED', '... and no more');

        is($pair->("status=$releases"), "$releases NEW, $releases NEW",
           'its store') if $releases;

        is($pair->("status=$binds&size=$size"), "$binds NEW, $binds REPLAYED",
           'its max_response');
        is($pair->("status=$binds&size=" . ($size + 1)),
           "$binds NEW, 409 NOT_KEPT", '... and no more');

        $id++;
        my @r = map {
            $send->("status=$binds&h=Set-Cookie:%20a=b"
                    . join '', map { "&h=$_-Hidden:%20x" } qw(X Y Z))
        } 1, 2;
        is(join(' ', map { $_->has('Set-Cookie') ? 1 : 0 } @r),
           $cookies eq 'always' ? '1 1' : '1 0', 'its replay_cookies');

        for my $other (qw(X Y Z)) {
            is($r[1]->has("$other-Hidden") ? 1 : 0, $other eq $h ? 0 : 1,
               "its hide_header: $other");
        }

        $id++;
        $send->("status=$binds");
        my $from = length $n->log;
        is(told($send->("status=$binds", body => 'c')), "$conflict CONFLICT",
           'a conflict');
        like(substr($n->log, $from), qr/\[$level\].*idempotency/,
             'its log_level');
    };
}

# The scope: one key, three of them.

is(join(', ', map {
       my ($method, $host, $path, $h) = @$_;
       told($n->request($method, "$path?id=s&status="
                                 . ($h eq 'Z' ? 500 : 200),
                        host => $host, body => 'b',
                        headers => [ "$h-Key: scope" ]))
   } ([ 'PUT', 'localhost', '/x', 'X' ], [ 'POST', 'server', '/x', 'Y' ],
      [ 'PATCH', 'localhost', '/own', 'Z' ]) x 2),
   '200 NEW, 200 NEW, 500 NEW, 200 REPLAYED, 200 REPLAYED, 500 REPLAYED',
   'each has a scope of its own');

# ... and two servers that inherit it share it: a key is bound to one of them.

is(join(', ', map {
       my ($host, $path) = @$_;
       told($n->request('PUT', "$path?id=shared", host => $host, body => 'b',
                        headers => [ 'X-Key: shared', 'X-Who: me' ]))
   } [ off => '/on' ], [ format => '/any' ], [ off => '/on' ]),
   '200 NEW, 422 CONFLICT, 200 REPLAYED', 'an inherited scope is one scope');

# Switched off and on.

for my $case ([ off => '/x', '200 -, 200 -' ],
              [ off => '/on', '200 NEW, 200 REPLAYED' ],
              [ off => '/on/below', '200 NEW, 200 REPLAYED' ],
              [ off => '/on/off', '200 -, 200 -' ],
              [ dry => '/x', '200 NEW_DRY_RUN, 200 REPLAYED_DRY_RUN' ],
              [ dry => '/off', '200 NEW, 200 REPLAYED' ],
              [ format => '/x', '400 MALFORMED, 400 MALFORMED' ],
              [ format => '/any', '200 NEW, 200 REPLAYED' ])
{
    my ($host, $path, $expected) = @$case;

    is(join(', ', map {
           told($n->request('PUT', "$path?id=onoff", host => $host, body => 'b',
                            headers => [ "X-Key: $host" . length $path,
                                         'X-Who: me' ]))
       } 1, 2), $expected, "server $host, $path");
}

# The window: what was bound first, for an hour, outlives the other.
{
    my $put = sub {
        my ($path, $key) = @_;

        return told($n->request('PUT', "$path?id=$key", host => 'window',
                                body => 'b', headers => [ "X-Key: $key" ]));
    };

    is($put->('/long', 'win1'), '200 NEW', 'an hour');
    is($put->('/x', 'win2'), '200 NEW', '200 ms');
    ok(until_true { $put->('/x', 'win2') eq '200 NEW' }, '... have passed');
    is($put->('/long', 'win1'), '200 REPLAYED', 'the hour has not');
}


# --- bodies, likewise --------------------------------------------------------

my $b = nginx(http => <<'EOC', server => <<'EOC');
    idempotency zone=z;
    idempotency_missing_key content;
    idempotency_normalize json;
    idempotency_normalize_buffer 40;
    idempotency_ignore_fields hh /in/hh;
    idempotency_content_window 300ms;
    idempotency_similar reject;

    add_header X-Status $idempotency_status always;

    server {
        listen 127.0.0.1:$TEST_NGINX_PORT;
        server_name server;

        idempotency_normalize json form;
        idempotency_normalize_buffer 50;
        idempotency_ignore_fields ss;
        idempotency_ignore_fields /in/ss;
        idempotency_content_window 1h;
        idempotency_similar warn;

        location / { proxy_pass http://$TEST_NGINX_BACKEND; }
    }
EOC
    location / { proxy_pass http://$TEST_NGINX_BACKEND; }

    location /some { idempotency_key_max_length 255;
                     proxy_pass http://$TEST_NGINX_BACKEND; }

    location /own {
        idempotency_normalize json text;
        idempotency_normalize_buffer 60;
        idempotency_ignore_fields /in/ll ll;
        idempotency_content_window 1h;
        idempotency_similar off;

        proxy_pass http://$TEST_NGINX_BACKEND;

        location /own/below { proxy_pass http://$TEST_NGINX_BACKEND; }
        location /own/off {
            idempotency_normalize off;
            proxy_pass http://$TEST_NGINX_BACKEND;
        }
    }
EOC

my %type = (form => 'application/x-www-form-urlencoded',
            json => 'application/json', text => 'text/plain');

for my $case ([ 'http', 'localhost', '/x', 'json', 'hh', 40,
                '409 SIMILAR', 'short' ],
              [ 'http, though the location says something', 'localhost',
                '/some', 'json', 'hh', 40, '409 SIMILAR', 'short' ],
              [ 'a server', 'server', '/x', 'json form', 'ss', 50,
                '200 SIMILAR', 'long' ],
              [ 'a location', 'localhost', '/own', 'json text', 'll', 60,
                '200 NEW', 'long' ],
              [ 'a location, from one within', 'localhost', '/own/below',
                'json text', 'll', 60, '200 NEW', 'long' ],
              [ 'off', 'localhost', '/own/off', '', '', 0, '200 NEW',
                'long' ])
{
    my ($name, $host, $path, $types, $ignored, $buffer, $similar, $window)
        = @$case;

    subtest "bodies: $name" => sub {
        my $send = sub {
            my ($type, $body, $key) = @_;

            return told($b->post("$path?id=$id", host => $host, key => $key,
                                 type => $type{$type}, body => $body));
        };

        my $pair = sub {
            my ($type, @bodies) = @_;

            $id++;
            return join ', ', map { $send->($type, $_, "b$id") } @bodies;
        };

        my %verdict = (1 => '200 NEW, 200 REPLAYED',
                       0 => '200 NEW, 409 CONFLICT');

        for ([ form => 'a=1&b=2', 'b=2&a=1' ], [ json => '[1]', '[ 1 ]' ],
             [ text => 'a b', 'a  b' ])
        {
            is($pair->(@$_), $verdict{$types =~ /$_->[0]/ ? 1 : 0},
               "its normalize: $_->[0]");
        }

        for my $field (qw(hh ss ll)) {
            is($pair->(json => map { "{\"$field\":$_}" } 1, 2),
               $verdict{$field eq $ignored ? 1 : 0}, "its ignore_fields: $field");
            is($pair->(json => map { "{\"in\":{\"$field\":$_}}" } 1, 2),
               $verdict{$field eq $ignored ? 1 : 0}, "... /in/$field");
        }

        for my $size (40, 41, 50, 51, 60, 61) {
            my $x = 'x' x ($size - 5);
            is($pair->(json => "[\"$x\" ]", "[ \"$x\"]"),
               $verdict{$size <= $buffer ? 1 : 0},
               "its normalize_buffer: $size bytes");
        }

        is(within(0.3, sub {
            $id++;
            $send->(text => 'c', "b$id-k");
            $send->(text => 'c', "b$id-l");
        }), $similar, 'its similar');

        $id++;
        is($send->(text => 'c'), '200 NEW', 'its missing_key');

        if ($window eq 'short') {
            ok(until_true { $send->(text => 'c') eq '200 NEW' },
               'its content_window');

        } else {
            sleep 0.5;
            is($send->(text => 'c'), '200 REPLAYED', 'its content_window');
        }
    };
}

done_testing();
