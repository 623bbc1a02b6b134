package Stage;

# What a browser meets: nginx with one of the examples, as it is but for its
# ports, and PHP behind it. All in one directory that goes with the stage.
#
#   my $s = Stage->new;
#   $s->{dir}                     the directory, nginx's prefix
#   $s->php(PATH => VALUE, ...);  php-cgi on $s->{dir}/php.sock
#   $s->fpm;                      PHP-FPM there instead, as Debian's service has it
#   $s->stop_php;
#   $s->nginx($text);             a configuration; PORT(name) in it is a free
#                                 port, then in $s->{port}{name}. Behind its zones
#                                 is what TEST_IDEMPOTENCY_STORE says
#   $s->under_way($file, sub { first }, sub { then });
#                                 an application of ours is held while $file.hold is
#                                 there, and adds to $file.begun: the second code is
#                                 run when the first one's request is being executed
#   $s->complaints                of nginx, in its error log
#   $s->start(@command);          anything else; it ends with the stage
#   Stage::needs(@commands);      or the test is skipped

use strict;
use warnings;

use Cwd qw(abs_path);
use File::Basename qw(dirname);
use File::Spec;
use File::Temp ();
use lib dirname(dirname(abs_path(__FILE__))) . '/lib';

use Commands qw(slurp spew free_port);
use IO::Socket::INET;
use IO::Socket::UNIX;
use POSIX ();
use Test::More ();
use Time::HiRes qw(sleep time);

our $root = dirname(dirname(dirname(abs_path(__FILE__))));

$ENV{PATH} .= ':/usr/sbin:/sbin';


sub new {
    my ($class) = @_;
    my $dir = File::Temp->newdir('idempotency-XXXXXX', TMPDIR => 1);

    chmod 0755, $dir;

    return bless { dir => "$dir", keep => $dir, started => [] }, $class;
}


# needs(COMMANDS): util/test installs their packages; without it they may be missing
sub needs {
    for my $command (@_) {
        grep { -x "$_/$command" } split /:/, $ENV{PATH}
            or Test::More::plan(skip_all => "no $command here");
    }
}


# the module, for load_module; empty if the binary has it
sub module {
    my $module = $ENV{IDEMPOTENCY_MODULE}
                 // ($ENV{BUILD_DIR} || "$root/build") . '/ngx_http_idempotency_module.so';

    return $module eq '' ? '' : File::Spec->rel2abs($module);
}


# start(COMMAND): in a group of its own, its output in DIR/NAME.out; should this
# test be killed, it ends as well
sub start {
    my ($self, @command) = @_;
    my ($name) = $command[0] =~ m{([^/]+)$};
    my $pid = fork // die $!;

    if ($pid == 0) {
        POSIX::setpgid(0, 0);
        chdir $self->{dir};
        open STDIN, '<', '/dev/null';
        open STDOUT, '>>', "$self->{dir}/$name.out";
        open STDERR, '>&', \*STDOUT;
        exec 'setpriv', '--pdeathsig', 'TERM', '--', @command or POSIX::_exit(127);
    }

    POSIX::setpgid($pid, $pid);
    push @{ $self->{started} }, $pid;
    return $pid;
}


sub stop {
    my ($self, $pid) = @_;

    kill TERM => -$pid;
    waitpid $pid, 0;
    sleep 0.02 while is_running($pid);
    @{ $self->{started} } = grep { $_ != $pid } @{ $self->{started} };
}


# is_running(GROUP): without those that only await the notice of a parent that is
# not theirs, the machine's first process, which may take its time
sub is_running {
    my ($group) = @_;

    return scalar grep { slurp($_) =~ /\) [^ZX] \d+ $group / } glob '/proc/[0-9]*/stat'
        if kill 0 => -$group;
}


# until($what, CONDITION, PID): dies if it doesn't come true, or PID ends first
sub until {
    my ($self, $what, $condition, $pid) = @_;
    my $deadline = time + 180;

    until ($condition->()) {
        if (time > $deadline || $pid && waitpid($pid, POSIX::WNOHANG()) == $pid) {
            die "no $what\n", map { slurp($_) } glob "$self->{dir}/*.out $self->{dir}/*.log";
        }
        sleep 0.05;
    }
}


# under_way(FILE, FIRST, THEN[, ANSWERED]): or when ANSWERED gives another number,
# as what was replayed is never executed
sub under_way {
    my ($self, $file, $first, $then, $answered) = @_;
    my $seen = sub { join ' ', -s "$file.begun" || 0, $answered ? $answered->() : () };
    my $before = $seen->();

    spew("$file.hold", '');

    my $ok = eval {
        $first->();
        $self->until('request', sub { $seen->() ne $before });
        $then->();
        1;
    };

    unlink "$file.hold";
    die $@ if !$ok;
}


# with as many children as clicks can be under way
sub php {
    my ($self, %env) = @_;
    my $socket = "$self->{dir}/php.sock";

    unlink $socket;
    my $umask = umask 0;
    local @ENV{keys %env} = values %env;
    local @ENV{qw(PHP_FCGI_CHILDREN PHP_FCGI_MAX_REQUESTS)} = (6, 0);

    $self->{php} = $self->start('php-cgi', '-d', 'log_errors=1',
                                '-d', "error_log=$self->{dir}/php.log", '-b', $socket);
    umask $umask;
    $self->until('PHP', sub { IO::Socket::UNIX->new($socket) }, $self->{php});
}


# as root: it runs as www-data, and its socket is for www-data only
sub fpm {
    my ($self) = @_;
    my @user = $> == 0 ? map { "$_ = www-data" }
                             qw(user group listen.owner listen.group) : ();

    spew("$self->{dir}/fpm.conf", join "\n", '[global]', 'daemonize = no',
         "error_log = $self->{dir}/fpm.log", '[www]', @user,
         "listen = $self->{dir}/php.sock", 'listen.mode = 0660',
         'pm = static', 'pm.max_children = 6',
         "php_admin_value[error_log] = $self->{dir}/php.log", '');
    spew("$self->{dir}/php.log", '');
    chmod 0666, "$self->{dir}/php.log";

    $self->{php} = $self->start(fpm_command(), '-F', '-y', "$self->{dir}/fpm.conf");
    $self->until('PHP-FPM', sub { IO::Socket::UNIX->new("$self->{dir}/php.sock") },
                 $self->{php});
}


# its name has the version in it
sub fpm_command {
    my ($command) = reverse sort glob '/usr/sbin/php-fpm*';

    return $command // Test::More::plan(skip_all => 'no PHP-FPM here');
}


# its socket stays: who wants to connect is refused
sub stop_php {
    my ($self) = @_;

    $self->stop(delete $self->{php});
}


sub nginx {
    my ($self, $text) = @_;
    my $nginx = $ENV{TEST_NGINX_BINARY} || 'nginx';
    my $module = module();

    if ($module eq '') {
        $text =~ s/^load_module .*;$//m;
    } else {
        $text =~ s/^load_module \Kmodules\/.*;$/$module;/m;
    }

    # what else a test's zones are to have behind them
    if ($ENV{TEST_IDEMPOTENCY_STORE}) {
        require Idempotency;
        my ($user) = ($text =~ /^user (\S+);/m, `$nginx -V 2>&1` =~ /--user=(\S+)/, 'nobody');
        $text = Idempotency::stored($text, "$self->{dir}/store", $user);
    }

    # somebody else may take a port before nginx does
    for my $try (1 .. 5) {
        my %port;

        (my $conf = $text) =~ s/PORT\((\w+)\)/$port{$1} ||= free_port()/ge;
        spew("$self->{dir}/nginx.conf", $conf);
        $self->{port} = \%port;
        unlink glob "$self->{dir}/*.pid $self->{dir}/nginx.out";

        my $pid = $self->start($nginx, '-p', $self->{dir}, '-e', 'error.log',
                               '-c', 'nginx.conf', '-g', 'daemon off;');

        my $started = eval {
            $self->until('nginx', sub { grep { -s } glob "$self->{dir}/*.pid" }, $pid);
        };

        return $self->{nginx} = $pid if $started // !$@;
        die $@ if $@ !~ /Address already in use/;
    }

    die "no free port\n";
}


# what nginx had to complain about, but for what the tests cause: PHP is away for
# a while, workers are killed
sub complaints {
    my ($self) = @_;

    return join '', grep { /\[(?:crit|alert|emerg)\]|Sanitizer/ && !/unix:php\.sock|signal 9/ }
                    map { slurp($_) =~ /^.*\n/mg } glob "$self->{dir}/*error.log";
}


sub end {
    my ($self) = @_;
    local ($?, $@);

    $self->stop($_) for reverse @{ $self->{started} };
}

sub DESTROY { $_[0]->end }


1;
