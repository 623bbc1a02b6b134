package Test::Nginx::Idempotency;

# Blocks for requests and their answers: Test::Nginx::Socket, and this.
#
#     use lib 't/lib';
#     use Test::Nginx::Idempotency 'no_plan';
#
#     run_tests();
#
#     __DATA__
#
#     === TEST 1: a repeat is answered from the record
#     --- config
#     location / { idempotency zone=z; proxy_pass http://backend; }
#     --- request eval
#     ["POST /a", "POST /a", "POST /b"]
#     --- more_headers
#     Idempotency-Key: first
#     --- error_code eval
#     [200, 200, 409]
#     --- idempotency_status: NEW REPLAYED CONFLICT
#     --- executions: 1
#
# Sections of our own:
#
# idempotency_status  $idempotency_status of each request, from the access log;
#     "-" where it is empty
# executions  how often the upstream executed anything in this block
# varies  names of header lines that a replay may have others of
#
# Where the statuses are given, a replay is one to the byte: REPLAYED and WAITED
# are marked and equal to a response before them, all but Date and Connection.
#
# A block has, without saying so: load_module, `idempotency_zone zone=z:16m;`
# unless its http_config has a zone z, and `upstream backend`, which does what
# a request's arguments say (BACKEND in Idempotency.pm); no `location /`. The
# other backends are $TEST_NGINX_FASTCGI, _SCGI, _UWSGI, and $TEST_NGINX_DEAD
# where nobody listens.
#
# A configuration that must_die is given to nginx -t: it has to be refused in one
# line, which error_log matches, and which names the line in which the directive
# stands. A section of the configuration that is a list makes a block for each.
#
# A block without config has all of the configuration of the block above it.
# Blocks with one configuration run one after the other, in any order, on one
# nginx: the zone lives on, so keys are a block's own. What nginx says as it
# starts belongs to the first of them.
#
# A section that stands once is for all requests of a block: a header, an error
# code, a response body. A block sends as many as the longest of `request` and
# `more_headers` has. Error codes may be words in a row, as statuses; where only
# statuses are given, a refusal has its usual code, and all else 200.
#
# `--- init` may say pending(METHOD, URI, %o), as the scripts' request() does (the
# URI has an id=X and gate=1): that request is with the upstream while the block's
# are sent, and is answered behind them, as a new one, or the block fails.
#
# error_log, no_error_log and grep_error_log are looked at once, when all has
# been sent; what error_log wants is waited for. No block may log an [alert],
# [crit] or [emerg] which its error_log does not name.
#
# Ports and directories are each file's own, whether TEST_NGINX_RANDOMIZE says
# so or not. TEST_NGINX_USE_HUP reloads one nginx for all blocks, so what a zone
# is must not differ between two of a name; TEST_NGINX_USE_VALGRIND does the same
# under valgrind, and fails for what that finds, but for nginx's own
# (t/valgrind.suppress). TEST_NGINX_TIMEOUT, in seconds, is how long a block waits
# for what doesn't come.

use Idempotency ();

my $dir;

# what Test::Nginx reads when it is loaded
BEGIN {
    $dir = Idempotency::blocks();

    delete $ENV{TEST_NGINX_RANDOMIZE};
    $ENV{TEST_NGINX_FORCE_RESTART_ON_TEST} = 0;
    $ENV{TEST_NGINX_STREAM_PORT} //= 0;
    $ENV{TEST_NGINX_SLEEP} //= 0.001;
    $ENV{TEST_NGINX_TIMEOUT} //= Idempotency::patience();

    # one nginx for all blocks, and time for what is said at its end
    if ($ENV{TEST_NGINX_USE_VALGRIND}) {
        $ENV{TEST_NGINX_USE_HUP} = 1;
        $ENV{VALGRIND_OPTS} = "--trace-children=yes --log-file=$dir/valgrind.%p "
            . "--suppressions=$INC{'Idempotency.pm'}" =~ s{lib/\w+\.pm$}{valgrind.suppress}r;
    }
}

use Test::Nginx::Socket -base;
use Test::Base::Filter ();

our @EXPORT = qw(run_tests pending executions last_request until_true);

BEGIN {
    no strict 'refs';
    *$_ = \&{"Idempotency::$_"} for qw(executions last_request until_true);
}

my $error_log = "$dir/error.log";
my $access_log = "$dir/access.log";

$Test::Nginx::Util::ErrLogFile = $error_log;

# One that has ended and is reaped between the two looks of Test::Nginx's own,
# at the process and at its state, would count as running.
{
    no warnings 'redefine';

    *Test::Nginx::Util::is_running = sub ($) {
        return Idempotency::slurp("/proc/$_[0]/stat") =~ /\) [^ZX] /;
    };
}

# where the zones of a block have what is behind them: with another configuration
# nginx is started anew, and nothing is to be known
my ($stores, $stored) = (0, '');

# where the error log is read from: by a block, and for what nobody may log
my ($from, $checked) = (0, 0);

$SIG{PIPE} = 'IGNORE';

# It warns of what check_alerts() judges, of a process that ended meanwhile, and,
# before it kills it, of one that doesn't end.
$SIG{__WARN__} = sub {
    fail('nginx stops when told to') if $_[0] =~ /timeout when waiting for the proc/;
    warn @_ unless $_[0] =~ /^WARNING: .*(?:\[[a-z]+\]|body truncated:|term signal) /;
};

no_root_location();
no_long_string();
master_on();
log_level('info');
env_to_nginx('UBSAN_OPTIONS');
worker_connections(512);


# Lines of a file from a place on, whole ones.

sub lines_of {
    my ($file, $at) = @_;

    open my $f, '<:raw', $file or return;
    seek $f, $at, 0;

    return grep /\n\z/, <$f>;
}


sub patterns {
    my ($value) = @_;

    return !defined $value ? () : ref $value eq 'ARRAY' ? @$value
           : ref $value ? $value : split /\n+/, $value;
}


sub matches {
    my ($line, $pattern) = @_;

    return ref $pattern ? $line =~ $pattern : index($line, $pattern) >= 0;
}


my @lists = qw(main_config http_config config);
my @configuration = (@lists, qw(post_main_config user_files log_level
                                server_name));

sub configuration {
    my ($block) = @_;

    return join "\n", map { ref ? map { "@$_" } @$_ : $_ // '' }
                      map { scalar $block->$_ } @configuration;
}


# What refusals are answered with, if nobody says otherwise.

my %code = (CONFLICT => 409, IN_PROGRESS => 409, IN_DOUBT => 409, NOT_KEPT => 409,
            EXPIRED => 409, MISSING => 400, MALFORMED => 400, LIMITED => 429);


# What stands once holds for each request.

sub spread {
    my ($block) = @_;

    my @all = (my @sent = qw(request more_headers),
               qw(error_code error_code_like response_body response_body_like
                  response_body_unlike response_headers response_headers_like
                  raw_response_headers_like raw_response_headers_unlike));

    my ($n) = sort { $b <=> $a } 1, map { ref eq 'ARRAY' ? scalar @$_ : () }
                                    map { scalar $block->$_ } @sent;

    $block->set_value(requests => $n);

    $block->set_value(error_code => join ' ', map { $code{$_} // 200 }
                                    split ' ', $block->idempotency_status)
        if defined $block->idempotency_status
           && !grep { defined $block->$_ } qw(error_code error_code_like);

    return if $n == 1;

    for my $section (@all) {
        my $value = $block->$section // next;
        next if ref $value eq 'ARRAY';

        my @words = $section eq 'error_code' ? split ' ', $value : $value;
        $block->set_value($section => @words > 1 ? \@words : [($value) x $n]);
    }
}


add_block_preprocessor(sub {
    my ($block) = @_;

    spread($block);

    my $http = $block->http_config // '';
    my $zone = $http =~ /\bzone=z:/ ? '' : 'idempotency_zone zone=z:16m;';

    # not of the server that goes on, if anything but this is another's
    my $mark = configuration($block);

    $stores++ if $mark ne $stored && !$ENV{TEST_NGINX_USE_HUP};
    $stored = $mark;
    $mark =~ s/^/# /mg;

    # behind the modules that a block loads, in front of all else
    $block->set_value(main_config => ($block->main_config // '')
        =~ s/^((?:\s*load_module [^;]+;)*)/"$1\n" . Idempotency::load_module()/er);
    $block->set_value(config => "$mark\n" . ($block->config // ''));
    $block->set_value(init => 'package main; ' . $block->init)
        if defined $block->init;
    $block->set_value(post_setup_server_root =>
        'Test::Nginx::Idempotency::starts();'
        . ($block->post_setup_server_root // ''));
    $block->set_value(init =>
        'Test::Nginx::Idempotency::is_up();' . ($block->init // ''))
        if $ENV{TEST_NGINX_USE_VALGRIND};
    $block->set_value(http_config => Idempotency::stored(<<"EOC" . $http, "$dir/store-$stores"));
    upstream backend { server $ENV{TEST_NGINX_BACKEND}; }
    log_format idempotency '\$idempotency_status \$uri';
    access_log $access_log idempotency;
    $zone
EOC
});


# What was sent, and its marker told from it.

my @responses;

sub response {
    my ($res, $head) = @_;

    my $marked = $head =~ s/^Idempotent-Replayed: true\r\n//m;

    $head =~ s/^(?:Date|Connection):.*\n//mg;

    return [ $marked ? 1 : 0, $head, $res ? $res->content // '' : '' ];
}


# Whether nginx has a connection with a client of this test: the states of TCP but
# those of who listens or has closed.

sub connected {
    my $port = sprintf ':%04X', server_port_for_client();

    open my $f, '<', '/proc/net/tcp' or return 0;

    return scalar grep { /^ *\d+: [0-9A-F]+$port \S+ (?!0[6A])/ } <$f>;
}


sub check_replays {
    my ($block, @statuses) = @_;

    my $varies = join '|', 'none', split ' ', $block->varies // '';
    my (%seen, @bad);

    for my $r (@responses) {
        my ($marked, $head, $body) = @$r;
        my $replay = shift(@statuses) =~ /^(?:REPLAYED|WAITED)$/ ? 1 : 0;

        $head =~ s/^(?:$varies):.*\n//mgi;
        push @bad, "$head$body"
            if $marked != $replay || $replay && !$seen{"$head$body"};
        $seen{"$head$body"} = 1 if !$replay;
    }

    is(scalar @bad, 0, $block->name . ' - replays ok')
        or diag(map { substr $_, 0, 500 } @bad, keys %seen);
}


sub starts { $from = -s $error_log // 0 }


# Under valgrind nginx takes its time.

sub is_up {
    until_true {
        IO::Socket::INET->new('127.0.0.1:' . server_port_for_client())
    } timeout();
}


# The statuses of the requests that ended since then. A reload asks for /ver.

sub statuses {
    my ($at) = @_;

    return map { /^(\S+)/ ? $1 : '-' } grep { !m{ /ver$} }
           lines_of($access_log, $at);
}


my @pending;

sub pending {
    my ($method, $uri, %o) = @_;

    my ($id) = $uri =~ /\bid=([^&]+)/ or die "pending: no id= in $uri\n";
    my $owner = Idempotency::Connection->new(server_port_for_client());

    $owner->send(Idempotency::message($method, $uri, %o));
    Idempotency::held($id);
    push @pending, [$id, $owner];
}


sub end_pending {
    my ($name) = @_;

    my $at = -s $access_log // 0;

    for (splice @pending) {
        my ($id, $owner) = @$_;

        Idempotency::go($id);
        my $status = $owner->response->{status};
        until_true { statuses($at) } timeout();
        is(join(' ', $status, statuses($at)), '200 NEW', "$name - $id ends");
        $at = -s $access_log;
    }
}


# Waits for what the block's error_log names, and has it judged once.

sub check_log {
    my ($block, $dry_run, $i) = @_;

    my @wanted = patterns(scalar $block->error_log);

    # a file behind each zone is made for each block, and nginx warns of that
    my @unwanted = map { $_ eq '[warn]' ? qr/\[warn\](?!.* the state file .* was made)/ : $_ }
                   patterns(scalar $block->no_error_log);

    $block->set_value(no_error_log => \@unwanted) if @unwanted;

    until_true {
        my @lines = lines_of($error_log, $from);
        !grep { my $p = $_; !grep { matches($_, $p) } @lines } @wanted;
    } timeout();

    $Test::Nginx::Util::ErrLogFilePos = $from;
    &Test::Nginx::Socket::check_error_log($block, undef, $dry_run, $i, 0);
    $from = -s $error_log // 0;
}


# One line that nobody may log is a failure, however many there are.

sub check_alerts {
    my ($name, @allowed) = @_;

    my @bad = grep { /$Idempotency::bad/ } lines_of($error_log, $checked);
    $checked = -s $error_log // 0;

    for my $pattern (@allowed) {
        @bad = grep { !matches($_, $pattern) } @bad;
    }

    push @bad, map { my @said = lines_of($_, 0); unlink $_ if @said; @said }
               glob "$dir/valgrind.*";

    if (@bad) {
        fail("$name - nothing bad in the error log");
        diag(@bad > 20 ? @bad[0 .. 19] : @bad);
    }
}


my $send = $Test::Nginx::Util::RunTestHelper;

$Test::Nginx::Util::RunTestHelper = sub {
    my ($block, $dry_run, $i) = @_;

    # what nginx has not closed yet it may not have logged either
    until_true { connected() <= @pending } 2 if !$dry_run;

    my $at = -s $access_log // 0;
    my $executed = executions();
    my %later = map { $_ => scalar $block->$_ }
                qw(error_log no_error_log grep_error_log grep_error_log_out);

    $Test::Nginx::Util::ErrLogFilePos = $from;
    $block->set_value($_ => undef) for keys %later;
    @responses = ();
    $send->($block, $dry_run, $i);
    $block->set_value($_ => $later{$_}) for keys %later;

    return if $dry_run;

    my $n = $block->requests;

    # A request is logged at its very end, and is not the next block's. A
    # location that says otherwise does not write to our log.
    if (defined $block->idempotency_status || defined $block->no_error_log
        || @responses && ($block->config // '') !~ /access_log/)
    {
        my @words = split ' ', $block->idempotency_status // '';
        @words = (@words) x $n if @words == 1;

        # a raw request may be several, and so may those of a pipeline
        my ($ended) = sort { $b <=> $a } $n, scalar @words, scalar @responses;
        until_true { statuses($at) >= $ended } timeout();

        is(join(' ', statuses($at)), "@words",
           $block->name . ' - idempotency status ok') if @words;
        check_replays($block, statuses($at))
            if "@words" =~ /REPLAYED|WAITED/ && @responses == $n;
    }

    # an upstream may come to a request later than its client is told
    if (defined(my $n = $block->executions)) {
        until_true { executions() - $executed >= $n } timeout();
        is(executions() - $executed, $n, $block->name . ' - executions ok');
    }

    check_log($block, $dry_run, $i);
};

add_test_cleanup_handler(sub {
    my ($block) = @_;

    end_pending($block->name);
    check_alerts($block->name, patterns(scalar $block->error_log));
});


# What must_die, and why.

sub dies {
    my ($block) = @_;

    my $name = $block->name;
    my ($ok, $out, $text) = Idempotency::config_test(
        module => 0, zone => 0, main => $block->main_config,
        http => $block->http_config, server => $block->config);
    my @said = $out =~ /\[emerg\] (.*)/g;
    my @why = patterns(scalar $block->error_log) or die "$name: no error_log\n";

    ok(!$ok && @said == 1, "$name - refused in one line") or diag($out);
    ok(matches($said[0] // '', $_), "$name - $_") or diag($out) for @why;

    like((split /\n/, $text)[$1 - 1], qr/idempotency/, "$name - line $1")
        if $out =~ m{ in ROOT/nginx\.conf:(\d+)$}m;
}


# A block for each configuration, with the one above where it has none.

sub expand {
    my ($above, @blocks);

    for my $block (@_) {
        if (!defined $block->config) {
            $block->set_value($_ => scalar $above->$_) for @configuration;
        }

        $above = $block;

        my ($n) = sort { $b <=> $a } 1, map { ref eq 'ARRAY' ? scalar @$_ : () }
                                        map { scalar $block->$_ } @lists;

        for my $i (0 .. $n - 1) {
            my $one = bless { %$block }, ref $block;

            for ($n > 1 ? (@lists, 'error_log') : ()) {
                my $value = $block->$_;
                $one->set_value($_ => $value->[$i]) if ref $value eq 'ARRAY';
            }

            push @blocks, $one;
        }
    }

    return @blocks;
}


{
    no warnings 'redefine';

    # a block that can't go on ends its file, and not all the others
    *Test::More::BAIL_OUT = sub {
        diag(lines_of($error_log, $from));
        die "@_\n";
    };

    # what can't be evaluated is no value, and a file's functions are its own
    *Test::Base::Filter::eval = sub {
        my @value = eval "package main; $_[1]";
        die $_[0]->current_block->name . ": $@" if $@;
        return @value;
    };

    my $parse = \&Test::Nginx::Socket::parse_response;
    *Test::Nginx::Socket::parse_response = sub ($$$) {
        my @parsed = $parse->(@_);
        push @responses, response(@parsed);
        return @parsed;
    };

    # whoever is given the one port can't do with an address in front of it
    my $reloaded = \&Test::Nginx::Util::test_config_version;
    *Test::Nginx::Util::test_config_version = sub ($$) {
        local $Test::Nginx::Util::ServerPort = server_port_for_client();
        $reloaded->(@_);
    };

    # in any order, but blocks with one configuration together
    *Test::Nginx::Util::shuffle = sub (@) {
        my (%turn, $n);
        my @shuffled = List::Util::shuffle(@_);
        $turn{configuration($_)} //= ++$n for @shuffled;
        return sort { $turn{configuration($a)} <=> $turn{configuration($b)} }
               @shuffled;
    };

    my $run = \&Test::Nginx::Util::run_test;
    *Test::Nginx::Util::run_test = sub ($) {
        return defined $_[0]->must_die ? dies(@_) : $run->(@_);
    };

    *run_tests = sub () {
        default_object()->block_list([expand(blocks())]);
        Test::Nginx::Util::run_tests();

        if (-f $Test::Nginx::Util::PidFile) {
            Test::Nginx::Util::kill_process(
                Test::Nginx::Util::get_pid_from_pidfile($0), 1, $0);
        }

        check_alerts($0);
    };
}


1;
