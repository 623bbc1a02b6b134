package Programs;

# The tests in C and their like, as test files: run_programs('unit') builds and
# runs t/unit/run, or else unit/run, each of whose programs is one check. util/test names the
# source tree of nginx that they are linked with.

use strict;
use warnings;

use Cwd qw(abs_path);
use Exporter 'import';
use File::Basename qw(dirname);
use Test::More;

our @EXPORT = qw(run_programs);

my $root = dirname(dirname(dirname(abs_path(__FILE__))));


sub run_programs {
    my ($room, @arguments) = @_;

    plan skip_all => 'no NGINX_SOURCE_DIR: util/test sets it'
        unless $ENV{NGINX_SOURCE_DIR};

    my ($program) = grep { -f } map { "$root/$_$room/run" } 't/', '';
    my @command = ('bash', $program, @arguments);
    my (@lines, @names, $failed);

    # no white space in it: util/build takes none
    open my $out, '-|', "exec @command 2>&1" or die "@command: $!";

    while (my $line = <$out>) {
        push @lines, $line;
        push @names, $1 if $line =~ /^# (\w+)$/;
        $failed = $1 if $line =~ /^# \w+ tests: \d+ passed, \d+ failed:?(.*)/;
        note($line =~ s/^# //r) if $line =~ /^#/;
    }

    close $out;

    my $bad = $?;
    my %failed = map { $_ => 1 } split ' ', $failed // '';

    ok(!$failed{$_}, "$room: $_") for @names;
    ok(defined $failed && !$bad == !%failed, "$room: all of them were run");

    diag(@lines > 60 ? @lines[-60 .. -1] : @lines) if $bad;
    done_testing();
}


1;
