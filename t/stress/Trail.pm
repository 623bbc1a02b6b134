package Trail;

# The trail in nginx's error log, read as docs/operation.md says it can be: who claimed a
# token, what became of that, and whether somebody else had a right to claim it
# again.
#
#    Trail::audit($text, window => seconds): { claims, outcomes, unknown,
#        violations => [...] }
#
# A line is written a moment after what it tells, so whoever was killed in between has
# told nothing: such claims are `unknown`, and another one may have been released.

use strict;
use warnings;

use POSIX ();


sub audit {
    my ($text, %o) = @_;
    my %audit = (claims => 0, outcomes => 0, unknown => 0, violations => []);
    my (%claims, %taken, %died, $anew);

    $died{$1} = 1 while $text =~ /worker process (\d+) exited on signal/g;

    # a long one, line by line
    open my $lines, '<', \$text or die $!;

    while (<$lines>) {
        my ($date, $pid) = m{^(\d\S+ \S+) \[\w+\] (\d+)#} or next;

        # what the zone knew is gone
        $anew++ if /zone "[^"]*" was recreated/;

        my ($what, $token, $fence)
            = /idempotency(?: |: )(claim|took over|outcome [a-z ]+)\b.*, token: ([0-9a-f]{64}), .*fence: (\d+)/
            or next;
        my $claim = $claims{$token}{$fence} //= { fence => $fence, anew => $anew, lines => 0 };

        if ($what eq 'claim') {
            $audit{claims}++;
            $claim->{lines}++;
            @$claim{qw(at pid)} = (seconds($date), $pid);

        } elsif ($what eq 'took over') {
            $taken{"$token $fence"} = 1;

        } else {
            $audit{outcomes}++;
            push @{ $audit{violations} }, "$token $fence: two outcomes" if $claim->{why};
            @$claim{qw(at why)} = (seconds($date), $what =~ s/^outcome //r);
        }
    }

    for my $token (sort keys %claims) {
        my $before;

        # the lines of two workers may stand in any order, but fences rise
        for my $claim (sort { $a->{fence} <=> $b->{fence} } values %{ $claims{$token} }) {
            my $is = "$token $claim->{fence}";

            push @{ $audit{violations} }, "$is: $claim->{lines} times claimed"
                if $claim->{lines} != 1;
            push @{ $audit{violations} },
                 "$is: claimed, though $before->{fence} was " . ($before->{why} // 'pending')
                if $before && !$taken{$is} && !over($before, $claim, \%audit, \%o, \%died);

            $before = $claim;
        }
    }

    return \%audit;
}


# over(CLAIM, THE NEXT ONE): when that came; times are whole seconds
sub over {
    my ($claim, $next, $audit, $o, $died) = @_;

    return 1 if ($claim->{anew} // 0) != ($next->{anew} // 0)
                || ($claim->{why} // '') eq 'released'
                || ($next->{at} // 0) - ($claim->{at} // 0) >= $o->{window} - 1;
    return 0 if $claim->{why} || !$died->{$claim->{pid} // 0};

    $audit->{unknown}++;
    return 1;
}


sub seconds {
    my ($y, $m, $d, $h, $min, $s) = $_[0] =~ m{^(\d+)/(\d+)/(\d+) (\d+):(\d+):(\d+)};

    return POSIX::mktime($s, $min, $h, $d, $m - 1, $y - 1900, 0, 0, -1);
}


1;
